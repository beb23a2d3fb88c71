"""`consumerOffset.json`: what each group will read next of each queue."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.clock import Clock
from store.metadata.data_version import DATA_VERSION, DataVersion
from store.metadata.fields import faults_of, others, typed
from store.metadata.pieces import table_pieces

COMMITS_A_VERSION = 500  # RocketMQ's consumerOffsetUpdateVersionStep

_TABLE = "offsetTable"
_DERIVED = "groupTopicMap"  # RocketMQ writes it and does not read it


@dataclass(slots=True)
class ConsumerOffsetTable:
    """Offsets by "topic@group" and queue id; every 500th commit moves the version."""

    clock: Clock
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _commits: int = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "ConsumerOffsetTable":
        """Raises StoreError."""
        with faults_of("consumerOffset.json"):
            offsets = typed(content.get(_TABLE, None if content else {}), dict[str, dict[int, int]], _TABLE)
            unknown = others(content, DATA_VERSION, _TABLE, _DERIVED)
            return cls(clock, offsets, DataVersion.of_table(content), unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object, a copy of the present state."""
        table = {
            key: {str(queue_id): offset for queue_id, offset in queues.items()}
            for key, queues in self.offsets.items()
        }
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def to_pieces(self) -> Iterator[bytes]:
        """The same as text, in pieces between which others may work."""
        head = {**self.unknown, DATA_VERSION: self.data_version.to_json()}
        return table_pieces(head, _TABLE, self.offsets)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """`group` will read `offset` next; a lower one than before is taken too, as a reset does that."""
        self.offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._commits += 1
        if self._commits % COMMITS_A_VERSION == 0:
            self.data_version = self.data_version.next(self.clock.wall_ms())

"""`consumerOffset.json`: the queue offset at which each consumer group continues to read each queue."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.common.clock import Clock
from store.message.data_version import DATA_VERSION, DataVersion
from store.message.json_fields import fields_except, store_errors_for, typed
from store.metadata.pieces import table_pieces

COMMITS_PER_VERSION = 500  # RocketMQ's consumerOffsetUpdateVersionStep

_TABLE = "offsetTable"
_LITE = "lmqOffsetTable"  # RocketMQ before 5.5 keeps offsets of queues `%LMQ%…`, without a queue id, here
_DERIVED = "groupTopicMap"  # RocketMQ writes this field but never reads it


@dataclass(slots=True)
class ConsumerOffsetTable:
    """Committed offsets: `offsets["topic@group"][queue_id]` is the next queue offset that the group reads.

    Every 500th commit changes the data version, as in RocketMQ.
    """

    clock: Clock
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _commits: int = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "ConsumerOffsetTable":
        """Return the table in a parsed `consumerOffset.json`.

        Raises StoreError if a field has a wrong type.
        """
        with store_errors_for("consumerOffset.json"):
            offsets = typed(content.get(_TABLE, None if content else {}), dict[str, dict[int, int]], _TABLE)
            of_lite_topics = typed(content.get(_LITE, {}), dict[str, int], _LITE)
            offsets.update((key, {0: offset}) for key, offset in of_lite_topics.items())
            unknown = fields_except(content, DATA_VERSION, _TABLE, _LITE, _DERIVED)
            return cls(clock, offsets, DataVersion.of_table(content), unknown)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `consumerOffset.json`; later commits do not affect it."""
        table = {
            key: {str(queue_id): offset for queue_id, offset in queues.items()}
            for key, queues in self.offsets.items()
        }
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def to_pieces(self) -> Iterator[bytes]:
        """Yield the JSON text of the table in pieces, so that the caller can do other work between them."""
        head = {**self.unknown, DATA_VERSION: self.data_version.to_json()}
        return table_pieces(head, _TABLE, self.offsets)

    def replace_all(self, other: "ConsumerOffsetTable") -> None:
        """Take over the offsets and the data version of another table, in one step."""
        self.offsets, self.data_version = other.offsets, other.data_version

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next queue offset that `group` reads. It may be lower than before (an offset reset)."""
        self.offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.data_version = self.data_version.next(self.clock.wall_ms())

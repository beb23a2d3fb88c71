"""`consumerOffset.json`: the queue offset at which each consumer group continues to read each queue."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from store.common.clock import Clock
from store.message.data_version import DATA_VERSION, DataVersion
from store.message.json_fields import fields_except, store_errors_for, typed
from store.message.validate import LMQ_TOPIC_PREFIX
from store.metadata.pieces import table_pieces

COMMITS_PER_VERSION = 500  # RocketMQ's consumerOffsetUpdateVersionStep

_TABLE = "offsetTable"
_LITE = "lmqOffsetTable"  # RocketMQ before 5.5 keeps offsets of queues `%LMQ%…`, without a queue id, here
_DERIVED = "groupTopicMap"  # RocketMQ writes this field but never reads it


@dataclass(slots=True)
class ConsumerOffsetTable:
    """Committed offsets: `offsets["topic@group"][queue_id]` is the next queue offset that the group reads.

    Those of lite topics, of which there may be millions, are in `lite`, by the name of their queue and group.

    Every 500th commit changes the data version, as in RocketMQ.
    """

    clock: Clock
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    lite: dict[str, int] = field(default_factory=dict)
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
            for key in [
                key for key, queues in offsets.items() if key.startswith(LMQ_TOPIC_PREFIX) and 0 in queues
            ]:
                of_lite_topics[key] = offsets.pop(key)[0]
            unknown = fields_except(content, DATA_VERSION, _TABLE, _LITE, _DERIVED)
            return cls(clock, offsets, of_lite_topics, DataVersion.of_table(content), unknown)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `consumerOffset.json`; later commits do not affect it."""
        table = {
            key: {str(queue_id): offset for queue_id, offset in self.get(key, {}).items()} for key in self
        }
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def to_pieces(self) -> Iterator[bytes]:
        """Yield the JSON text of the table in pieces, so that the caller can do other work between them."""
        head = {**self.unknown, DATA_VERSION: self.data_version.to_json()}
        return table_pieces(head, _TABLE, self)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of all offsets, `topic@group`."""
        return chain(self.offsets, self.lite)

    def get(self, key: str, default: Mapping[int, int]) -> Mapping[int, int]:
        """Return the offsets with a key by queue id."""
        found = self.offsets.get(key)
        if found is None and key in self.lite:
            return {0: self.lite[key]}
        return default if found is None else found

    def put(self, key: str, queues: dict[int, int]) -> None:
        """Replace the offsets with a key; without queues, remove them."""
        self.lite.pop(key, None)
        self.offsets.pop(key, None)
        if 0 in queues and key.startswith(LMQ_TOPIC_PREFIX):
            self.lite[key] = queues[0]
        elif queues:
            self.offsets[key] = queues

    def replace_all(self, other: "ConsumerOffsetTable") -> None:
        """Take over the offsets and the data version of another table, in one step."""
        self.offsets, self.lite, self.data_version = other.offsets, other.lite, other.data_version

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next queue offset that `group` reads. It may be lower than before (an offset reset)."""
        if queue_id == 0 and topic.startswith(LMQ_TOPIC_PREFIX):
            self.lite[f"{topic}@{group}"] = offset
        else:
            self.offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.data_version = self.data_version.next(self.clock.wall_ms())

"""`messageRequestMode.json`: how a group gets the messages of a topic, by PULL or by POP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.metadata.fields import Field, entries, read_fields, table_entries, write_fields
from store.store_errors import StoreError

_TABLE = "messageRequestModeMap"
_FIELDS = (
    Field("topic", "topic", str),
    Field("consumerGroup", "consumer_group", str),
    Field("mode", "mode", str),
    Field("popShareQueueNum", "pop_share_queue_num", int),
)


@dataclass(frozen=True, slots=True)
class MessageRequestMode:
    """One group's mode on one topic (RocketMQ SetMessageRequestModeRequestBody)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MessageRequestMode":
        """Raises ValueError."""
        known, unknown = read_fields(content, _FIELDS)
        missing = {"topic", "consumer_group"} - known.keys()
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} missing")
        return cls(**known, unknown=unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return write_fields(self, _FIELDS, self.unknown)


@dataclass(slots=True)
class MessageRequestModeTable:
    """The modes that were set, by topic and group; every other is PULL."""

    modes: dict[str, dict[str, MessageRequestMode]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MessageRequestModeTable":
        """Raises StoreError."""
        table = cls({}, {name: value for name, value in content.items() if name != _TABLE})
        try:
            found = table_entries(content, _TABLE)
            for topic in found:
                table.modes[topic] = {
                    group: MessageRequestMode.from_json({"topic": topic, "consumerGroup": group, **mode})
                    for group, mode in entries(found, topic).items()
                }
        except ValueError as error:
            raise StoreError(f"messageRequestMode.json: {error}") from error
        return table

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object, a copy of the present state."""
        by_topic = {
            topic: {group: mode.to_json() for group, mode in groups.items()}
            for topic, groups in self.modes.items()
        }
        return {**self.unknown, _TABLE: by_topic}

    def put(self, mode: MessageRequestMode) -> None:
        """Set a mode."""
        self.modes.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def remove_topic(self, topic: str) -> bool:
        """Forget a topic; returns whether it was there."""
        return self.modes.pop(topic, None) is not None

    def remove_group(self, group: str) -> bool:
        """Forget a group; returns whether it was there."""
        found = [topic for topic, groups in self.modes.items() if group in groups]
        for topic in found:
            del self.modes[topic][group]
            if not self.modes[topic]:
                del self.modes[topic]
        return bool(found)

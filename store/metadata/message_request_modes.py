"""`messageRequestMode.json`: how a group gets the messages of a topic, by PULL or by POP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.metadata.fields import ConfigObject, entries, faults_of, others, table_entries

_TABLE = "messageRequestModeMap"


class MessageRequestMode(ConfigObject, frozen=True):
    """One group's mode on one topic (RocketMQ SetMessageRequestModeRequestBody)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0


@dataclass(slots=True)
class MessageRequestModeTable:
    """The modes that were set, by topic and group; every other is PULL."""

    modes: dict[str, dict[str, MessageRequestMode]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MessageRequestModeTable":
        """Raises StoreError."""
        table = cls({}, others(content, _TABLE))
        with faults_of("messageRequestMode.json"):
            found = table_entries(content, _TABLE)
            for topic in found:
                table.modes[topic] = {
                    group: MessageRequestMode.from_json({"topic": topic, "consumerGroup": group, **mode})
                    for group, mode in entries(found, topic).items()
                }
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

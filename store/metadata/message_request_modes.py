"""`messageRequestMode.json`: whether a consumer group receives a topic by PULL or by POP requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.message.json_fields import ConfigObject, entries, fields_except, store_errors_for, table_entries

_TABLE = "messageRequestModeMap"


class MessageRequestMode(ConfigObject, frozen=True):
    """The request mode of one consumer group on one topic (RocketMQ's SetMessageRequestModeRequestBody)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0


@dataclass(slots=True)
class MessageRequestModeTable:
    """The request modes that were set: `modes[topic][group]`.

    A consumer group that is not in the table uses PULL.
    """

    modes: dict[str, dict[str, MessageRequestMode]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MessageRequestModeTable":
        """Return the table in a parsed `messageRequestMode.json`.

        Raises StoreError if a field has a wrong type.
        """
        table = cls({}, fields_except(content, _TABLE))
        with store_errors_for("messageRequestMode.json"):
            found = table_entries(content, _TABLE)
            for topic in found:
                table.modes[topic] = {
                    group: MessageRequestMode.from_json({"topic": topic, "consumerGroup": group, **mode})
                    for group, mode in entries(found, topic).items()
                }
        return table

    def to_json(self) -> dict[str, Any]:
        """Return the content of `messageRequestMode.json`; later changes of the table do not affect it."""
        by_topic = {
            topic: {group: mode.to_json() for group, mode in groups.items()}
            for topic, groups in self.modes.items()
        }
        return {**self.unknown, _TABLE: by_topic}

    def put(self, mode: MessageRequestMode) -> None:
        """Set the request mode of a consumer group on a topic."""
        self.modes.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def remove_topic(self, topic: str) -> bool:
        """Remove the request modes of all groups on a topic. Return True if there were any."""
        return self.modes.pop(topic, None) is not None

    def remove_group(self, group: str) -> bool:
        """Remove the request modes of a group on all topics. Return True if there were any."""
        found = [topic for topic, groups in self.modes.items() if group in groups]
        for topic in found:
            del self.modes[topic][group]
            if not self.modes[topic]:
                del self.modes[topic]
        return bool(found)

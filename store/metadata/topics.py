"""`topics.json`: the topics of a broker and their settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.common.clock import Clock
from store.message.data_version import DATA_VERSION, DataVersion
from store.message.json_fields import JsonOfTable, fields_except, store_errors_for, table_entries
from store.message.topic_config import TopicConfig

_TABLE = "topicConfigTable"


@dataclass(slots=True)
class TopicConfigTable:
    """All topics by name; every change also changes the data version."""

    clock: Clock
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _json: JsonOfTable = field(default_factory=JsonOfTable, repr=False, compare=False)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "TopicConfigTable":
        """Return the table in a parsed `topics.json`. Raises StoreError if a field has a wrong type."""
        with store_errors_for("topics.json"):
            topics = {
                name: TopicConfig.from_json({"topicName": name, **topic})
                for name, topic in table_entries(content, _TABLE).items()
            }
            return cls(
                clock, topics, DataVersion.of_table(content), fields_except(content, DATA_VERSION, _TABLE)
            )

    def to_json(self) -> dict[str, Any]:
        """Return the content of `topics.json`; later changes of the table do not affect it.

        The caller must not change the objects of the topics.
        """
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: self.json_of(None)}

    def json_of(self, names: Iterable[str] | None) -> dict[str, dict[str, Any]]:
        """Return the JSON objects of those of these topics that exist, or of all. Do not change them."""
        if names is None:
            return self._json.of(self.topics)
        return {name: topic.to_json() for name in names if (topic := self.topics.get(name)) is not None}

    def put(self, topic: TopicConfig) -> None:
        """Create a topic or replace its settings."""
        self.topics[topic.topic_name] = topic
        self._json.add(topic.topic_name, topic)
        self.touch()

    def replace_all(self, other: "TopicConfigTable") -> dict[str, TopicConfig]:
        """Take over the topics and the data version of another table, in one step.

        Returns the former topics.
        """
        before, self.topics, self.data_version = self.topics, other.topics, other.data_version
        return before

    def touch(self) -> None:
        """Change only the data version, so that nameservers and slaves fetch the table again."""
        self.data_version = self.data_version.next(self.clock.wall_ms())

    def remove(self, topic_name: str) -> bool:
        """Remove a topic. Return True if it existed."""
        if self.topics.pop(topic_name, None) is None:
            return False
        self.touch()
        return True

"""`topics.json`: the topics of a broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.clock import Clock
from store.metadata.data_version import DATA_VERSION, DataVersion
from store.metadata.fields import Field, read_fields, table_entries
from store.store_errors import StoreError

_TABLE = "topicConfigTable"
_FIELDS = (
    Field("topicName", "topic_name", str),
    Field("readQueueNums", "read_queue_nums", int),
    Field("writeQueueNums", "write_queue_nums", int),
    Field("perm", "perm", int),
    Field("topicFilterType", "topic_filter_type", str),
    Field("topicSysFlag", "topic_sys_flag", int),
    Field("order", "order", bool),
    Field("attributes", "attributes", dict),
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings, with RocketMQ's defaults; `perm` is 4 read + 2 write + 1 inherit."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TopicConfig":
        """Raises ValueError."""
        known, unknown = read_fields(content, _FIELDS)
        if not known.get("topic_name"):
            raise ValueError("topicName is missing")
        return cls(**known, unknown=unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        # Not by `write_fields`: a broker writes all its topics whenever one of them is new.
        return {
            **self.unknown,
            "topicName": self.topic_name,
            "readQueueNums": self.read_queue_nums,
            "writeQueueNums": self.write_queue_nums,
            "perm": self.perm,
            "topicFilterType": self.topic_filter_type,
            "topicSysFlag": self.topic_sys_flag,
            "order": self.order,
            "attributes": self.attributes,
        }


@dataclass(slots=True)
class TopicConfigTable:
    """All topics by name, under a version that every change moves."""

    clock: Clock
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "TopicConfigTable":
        """Raises StoreError."""
        try:
            topics = {
                name: TopicConfig.from_json({"topicName": name, **topic})
                for name, topic in table_entries(content, _TABLE).items()
            }
            version = DataVersion.of_table(content)
        except ValueError as error:
            raise StoreError(f"topics.json: {error}") from error
        unknown = {name: value for name, value in content.items() if name not in (DATA_VERSION, _TABLE)}
        return cls(clock, topics, version, unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object, a copy of the present state."""
        table = {name: topic.to_json() for name, topic in self.topics.items()}
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def put(self, topic: TopicConfig) -> None:
        """Create the topic or replace its settings."""
        self.topics[topic.topic_name] = topic
        self.touch()

    def touch(self) -> None:
        """Move the version: what is told of the topics has changed."""
        self.data_version = self.data_version.next(self.clock.wall_ms())

    def remove(self, topic_name: str) -> bool:
        """Forget the topic; returns whether it existed."""
        if self.topics.pop(topic_name, None) is None:
            return False
        self.touch()
        return True

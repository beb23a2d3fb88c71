"""`consumerFilter.json`: the expressions, other than tags, by which groups choose among messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.metadata.fields import Field, entries, read_fields, table_entries, write_fields
from store.store_errors import StoreError

_BY_TOPIC = "filterDataByTopic"
_BY_GROUP = "groupFilterData"
_FIELDS = (
    Field("topic", "topic", str),
    Field("consumerGroup", "consumer_group", str),
    Field("expression", "expression", str),
    Field("expressionType", "expression_type", str),
    Field("bornTime", "born_time_ms", int),
    Field("deadTime", "dead_time_ms", int),
    Field("clientVersion", "client_version", int),
    Field("bloomFilterData", "bloom_filter_data", dict),
)


@dataclass(frozen=True, slots=True)
class ConsumerFilterData:
    """One group's expression on one topic; `dead_time_ms` is 0 while the group is there."""

    topic: str
    consumer_group: str
    expression: str | None = None
    expression_type: str | None = None
    born_time_ms: int = 0
    dead_time_ms: int = 0
    client_version: int = 0
    bloom_filter_data: dict[str, Any] | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ConsumerFilterData":
        """Raises ValueError."""
        known, unknown = read_fields(content, _FIELDS)
        return cls(**known, unknown=unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return write_fields(self, _FIELDS, self.unknown)


@dataclass(slots=True)
class ConsumerFilterTable:
    """The expressions by topic and group."""

    filters: dict[str, dict[str, ConsumerFilterData]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _unknown_by_topic: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ConsumerFilterTable":
        """Raises StoreError."""
        table = cls({}, {name: value for name, value in content.items() if name != _BY_TOPIC})
        try:
            for topic, entry in table_entries(content, _BY_TOPIC).items():
                table.filters[topic] = {
                    group: ConsumerFilterData.from_json({"topic": topic, "consumerGroup": group, **found})
                    for group, found in entries(entry, _BY_GROUP).items()
                }
                known = ("topic", _BY_GROUP)
                table._unknown_by_topic[topic] = {
                    name: value for name, value in entry.items() if name not in known
                }
        except ValueError as error:
            raise StoreError(f"consumerFilter.json: {error}") from error
        return table

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object, a copy of the present state."""
        by_topic = {
            topic: {
                **self._unknown_by_topic.get(topic, {}),
                "topic": topic,
                _BY_GROUP: {group: found.to_json() for group, found in groups.items()},
            }
            for topic, groups in self.filters.items()
        }
        return {**self.unknown, _BY_TOPIC: by_topic}

    def remove_group(self, group: str) -> bool:
        """Forget the expressions of a group; returns whether there were any."""
        having = [groups for groups in self.filters.values() if group in groups]
        for groups in having:
            del groups[group]
        return bool(having)

    def remove_topic(self, topic: str) -> bool:
        """Forget the expressions on a topic; returns whether there were any."""
        self._unknown_by_topic.pop(topic, None)
        return self.filters.pop(topic, None) is not None

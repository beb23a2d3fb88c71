"""`consumerFilter.json`: the expressions, other than tags, by which groups choose among messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from store.metadata.fields import ConfigObject, entries, faults_of, others, table_entries

_BY_TOPIC = "filterDataByTopic"
_BY_GROUP = "groupFilterData"


class ConsumerFilterData(ConfigObject, frozen=True):
    """One group's expression on one topic; `dead_time_ms` is 0 while the group is there."""

    topic: str
    consumer_group: str
    expression: str | msgspec.UnsetType = msgspec.UNSET
    expression_type: str | msgspec.UnsetType = msgspec.UNSET
    born_time_ms: int = msgspec.field(name="bornTime", default=0)
    dead_time_ms: int = msgspec.field(name="deadTime", default=0)
    client_version: int = 0
    bloom_filter_data: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class ConsumerFilterTable:
    """The expressions by topic and group."""

    filters: dict[str, dict[str, ConsumerFilterData]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _unknown_by_topic: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ConsumerFilterTable":
        """Raises StoreError."""
        table = cls({}, others(content, _BY_TOPIC))
        with faults_of("consumerFilter.json"):
            for topic, entry in table_entries(content, _BY_TOPIC).items():
                table.filters[topic] = {
                    group: ConsumerFilterData.from_json({"topic": topic, "consumerGroup": group, **found})
                    for group, found in entries(entry, _BY_GROUP).items()
                }
                table._unknown_by_topic[topic] = others(entry, "topic", _BY_GROUP)
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

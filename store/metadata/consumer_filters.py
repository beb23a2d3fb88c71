"""`consumerFilter.json`: the filter expressions (SQL92, not tags) of consumer groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from store.message.json_fields import ConfigObject, entries, fields_except, store_errors_for, table_entries

_BY_TOPIC = "filterDataByTopic"
_BY_GROUP = "groupFilterData"


class ConsumerFilterData(ConfigObject, frozen=True):
    """The filter expression of one consumer group on one topic (RocketMQ's ConsumerFilterData).

    `dead_time_ms` is the time at which the group was unregistered, or 0 while it is registered.
    """

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
    """Filter expressions by topic and consumer group: `filters[topic][group]`."""

    filters: dict[str, dict[str, ConsumerFilterData]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _unknown_by_topic: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ConsumerFilterTable":
        """Return the table in a parsed `consumerFilter.json`.

        Raises StoreError if a field has a wrong type.
        """
        table = cls({}, fields_except(content, _BY_TOPIC))
        with store_errors_for("consumerFilter.json"):
            for topic, entry in table_entries(content, _BY_TOPIC).items():
                table.filters[topic] = {
                    group: ConsumerFilterData.from_json({"topic": topic, "consumerGroup": group, **found})
                    for group, found in entries(entry, _BY_GROUP).items()
                }
                table._unknown_by_topic[topic] = fields_except(entry, "topic", _BY_GROUP)
        return table

    def to_json(self) -> dict[str, Any]:
        """Return the content of `consumerFilter.json`; later changes of the table do not affect it."""
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
        """Remove all filter expressions of a consumer group. Return True if it had any."""
        having = [groups for groups in self.filters.values() if group in groups]
        for groups in having:
            del groups[group]
        return bool(having)

    def remove_topic(self, topic: str) -> bool:
        """Remove the filter expressions of all groups on a topic. Return True if there were any."""
        self._unknown_by_topic.pop(topic, None)
        return self.filters.pop(topic, None) is not None

"""`subscriptionGroup.json`: the consumer groups of a broker and their settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.common.clock import Clock
from store.message.data_version import DATA_VERSION, DataVersion
from store.message.group_config import SubscriptionGroupConfig
from store.message.json_fields import (
    JsonOfTable,
    entries,
    fields_except,
    store_errors_for,
    table_entries,
    typed,
)

_TABLE = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"


@dataclass(slots=True)
class SubscriptionGroupTable:
    """All consumer groups by name; every change also changes the data version.

    `forbidden[group][topic]` is RocketMQ's bit mask of the operations that the group must not do on the
    topic.
    """

    clock: Clock
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _json: JsonOfTable = field(default_factory=JsonOfTable, repr=False, compare=False)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "SubscriptionGroupTable":
        """Return the table in a parsed `subscriptionGroup.json`.

        Raises StoreError if a field has a wrong type.
        """
        with store_errors_for("subscriptionGroup.json"):
            groups = {
                name: SubscriptionGroupConfig.from_json({"groupName": name, **group})
                for name, group in table_entries(content, _TABLE).items()
            }
            unknown = fields_except(content, DATA_VERSION, _TABLE, _FORBIDDEN)
            forbidden = typed(entries(content, _FORBIDDEN), dict[str, dict[str, int]], _FORBIDDEN)
            return cls(clock, groups, DataVersion.of_table(content), forbidden, unknown)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `subscriptionGroup.json`; later changes of the table do not affect it.

        The caller must not change the objects of the groups.
        """
        return {
            **self.unknown,
            DATA_VERSION: self.data_version.to_json(),
            _FORBIDDEN: {group: dict(topics) for group, topics in self.forbidden.items()},
            _TABLE: self._json.of(self.groups),
        }

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create a consumer group, or replace its settings."""
        self.groups[group.group_name] = group
        self._json.add(group.group_name, group)
        self.data_version = self.data_version.next(self.clock.wall_ms())

    def replace_all(self, other: "SubscriptionGroupTable") -> None:
        """Take over the groups, the forbidden topics and the data version of another table, in one step."""
        self.groups, self.forbidden, self.data_version = other.groups, other.forbidden, other.data_version

    def remove(self, group_name: str) -> bool:
        """Remove a consumer group. Return True if it existed."""
        if self.groups.pop(group_name, None) is None:
            return False
        self.data_version = self.data_version.next(self.clock.wall_ms())
        return True

"""`subscriptionGroup.json`: the consumer groups of a broker and their settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from store.clock import Clock
from store.metadata.data_version import DATA_VERSION, DataVersion
from store.metadata.fields import (
    ConfigObject,
    JsonOfTable,
    Name,
    entries,
    fields_except,
    store_errors_for,
    table_entries,
    typed,
)

_TABLE = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"


class SubscriptionGroupConfig(ConfigObject, frozen=True):
    """The settings of a consumer group, with the defaults of RocketMQ's SubscriptionGroupConfig."""

    group_name: Name
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = msgspec.field(name="consumeTimeoutMinute", default=15)
    subscription_data_set: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


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

    def remove(self, group_name: str) -> bool:
        """Remove a consumer group. Return True if it existed."""
        if self.groups.pop(group_name, None) is None:
            return False
        self.data_version = self.data_version.next(self.clock.wall_ms())
        return True

"""`subscriptionGroup.json`: the consumer groups that a broker knows, and what they may do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from store.clock import Clock
from store.metadata.data_version import DATA_VERSION, DataVersion
from store.metadata.fields import ConfigObject, Name, entries, faults_of, others, table_entries

_TABLE = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"


class SubscriptionGroupConfig(ConfigObject, frozen=True):
    """A consumer group's settings, with RocketMQ's defaults."""

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
    """All groups by name, under a version that every change moves.

    `forbidden` holds, by group and topic, a mask of what the group may not do there.
    """

    clock: Clock
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "SubscriptionGroupTable":
        """Raises StoreError."""
        with faults_of("subscriptionGroup.json"):
            groups = {
                name: SubscriptionGroupConfig.from_json({"groupName": name, **group})
                for name, group in table_entries(content, _TABLE).items()
            }
            unknown = others(content, DATA_VERSION, _TABLE, _FORBIDDEN)
            return cls(clock, groups, DataVersion.of_table(content), entries(content, _FORBIDDEN), unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object, a copy of the present state."""
        return {
            **self.unknown,
            DATA_VERSION: self.data_version.to_json(),
            _FORBIDDEN: {group: dict(topics) for group, topics in self.forbidden.items()},
            _TABLE: {name: group.to_json() for name, group in self.groups.items()},
        }

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create the group or replace its settings."""
        self.groups[group.group_name] = group
        self.data_version = self.data_version.next(self.clock.wall_ms())

    def remove(self, group_name: str) -> bool:
        """Forget the group; returns whether it existed."""
        if self.groups.pop(group_name, None) is None:
            return False
        self.data_version = self.data_version.next(self.clock.wall_ms())
        return True

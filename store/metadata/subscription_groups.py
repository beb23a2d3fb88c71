"""`subscriptionGroup.json`: the consumer groups that a broker knows, and what they may do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.clock import Clock
from store.metadata.data_version import DATA_VERSION, DataVersion
from store.metadata.fields import Field, entries, read_fields, table_entries, write_fields
from store.store_errors import StoreError

_TABLE = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"
_FIELDS = (
    Field("groupName", "group_name", str),
    Field("consumeEnable", "consume_enable", bool),
    Field("consumeFromMinEnable", "consume_from_min_enable", bool),
    Field("consumeBroadcastEnable", "consume_broadcast_enable", bool),
    Field("consumeMessageOrderly", "consume_message_orderly", bool),
    Field("retryQueueNums", "retry_queue_nums", int),
    Field("retryMaxTimes", "retry_max_times", int),
    Field("groupRetryPolicy", "group_retry_policy", dict),
    Field("brokerId", "broker_id", int),
    Field("whichBrokerWhenConsumeSlowly", "which_broker_when_consume_slowly", int),
    Field("notifyConsumerIdsChangedEnable", "notify_consumer_ids_changed_enable", bool),
    Field("groupSysFlag", "group_sys_flag", int),
    Field("consumeTimeoutMinute", "consume_timeout_minutes", int),
    Field("subscriptionDataSet", "subscription_data_set", list),
    Field("attributes", "attributes", dict),
)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A consumer group's settings, with RocketMQ's defaults."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "SubscriptionGroupConfig":
        """Raises ValueError."""
        known, unknown = read_fields(content, _FIELDS)
        if not known.get("group_name"):
            raise ValueError("groupName is missing")
        return cls(**known, unknown=unknown)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return write_fields(self, _FIELDS, self.unknown)


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
        try:
            groups = {
                name: SubscriptionGroupConfig.from_json({"groupName": name, **group})
                for name, group in table_entries(content, _TABLE).items()
            }
            forbidden = entries(content, _FORBIDDEN)
            version = DataVersion.of_table(content)
        except ValueError as error:
            raise StoreError(f"subscriptionGroup.json: {error}") from error
        known = (DATA_VERSION, _TABLE, _FORBIDDEN)
        unknown = {name: value for name, value in content.items() if name not in known}
        return cls(clock, groups, version, forbidden, unknown)

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

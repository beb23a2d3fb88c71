"""SubscriptionGroupConfig: the settings of one consumer group, in RocketMQ's files and bodies."""

from typing import Any

import msgspec

from store.message.json_fields import ConfigObject, Name


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

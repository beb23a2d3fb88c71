"""The tables that a broker keeps in `config/*.json`, in RocketMQ's format.

Topics, subscription groups, consumer offsets, delay offsets, consumer filters, message request modes and the
batches of ordered pops.
"""

from store.metadata.consumer_filters import ConsumerFilterData, ConsumerFilterTable
from store.metadata.consumer_offsets import ConsumerOffsetTable
from store.metadata.consumer_orders import ConsumerOrderTable, OrderBatch
from store.metadata.delay_offsets import DelayOffsetTable
from store.metadata.message_request_modes import MessageRequestMode, MessageRequestModeTable
from store.metadata.subscription_groups import SubscriptionGroupTable
from store.metadata.topics import TopicConfigTable

__all__ = [
    "ConsumerFilterData",
    "ConsumerFilterTable",
    "ConsumerOffsetTable",
    "ConsumerOrderTable",
    "DelayOffsetTable",
    "MessageRequestMode",
    "MessageRequestModeTable",
    "OrderBatch",
    "SubscriptionGroupTable",
    "TopicConfigTable",
]

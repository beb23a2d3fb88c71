"""The RayMQ client, blocking API. `cluster.client.aio` has the same classes for asyncio.

from cluster.client import Producer, PullConsumer, PushConsumer, Admin

with Producer("127.0.0.1:9876", group="orders") as producer:
    producer.send("orders", b"4 apples", keys="order-1", sharding_key="customer-7")

with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
    consumer.subscribe("orders")
    for message in consumer:
        print(message.body)
"""

from cluster.client.admin.admin import Admin
from cluster.client.config import ClientConfig, ConsumerConfig, ProducerConfig, PushConfig
from cluster.client.consumer.deduplicator import Deduplicator
from cluster.client.consumer.pull_consumer import PullConsumer
from cluster.client.consumer.push_consumer import PushConsumer
from cluster.client.consumer.seen_stores import MemorySeen, SqliteSeen
from cluster.client.errors import ClientError
from cluster.client.message_selector import MessageSelector
from cluster.client.pop.lite_consumer import LiteConsumer
from cluster.client.pop.pop_config import LiteConfig, PopConfig
from cluster.client.pop.pop_consumer import PopConsumer
from cluster.client.producer.producer import Producer
from cluster.client.producer.transaction_core import LocalTransactionState, TransactionSendResult
from cluster.client.producer.transaction_producer import TransactionProducer
from cluster.client.results import (
    ConsumeStatus,
    ReconsumeLater,
    SendResult,
    SendStatus,
    TableReceipt,
    reconsume_later,
)
from cluster.client.selectors import (
    SelectMessageQueueByHash,
    SelectMessageQueueByMachineRoom,
    SelectMessageQueueByRandom,
)
from cluster.client.tls import TlsConfig
from store.message.message import Message, MessageExt
from store.message.message_queue import MessageQueue

__all__ = [
    "Admin",
    "ClientConfig",
    "ClientError",
    "ConsumeStatus",
    "ConsumerConfig",
    "Deduplicator",
    "LiteConfig",
    "LiteConsumer",
    "LocalTransactionState",
    "MemorySeen",
    "Message",
    "MessageExt",
    "MessageQueue",
    "MessageSelector",
    "PopConfig",
    "PopConsumer",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PushConfig",
    "PushConsumer",
    "ReconsumeLater",
    "SelectMessageQueueByHash",
    "SelectMessageQueueByMachineRoom",
    "SelectMessageQueueByRandom",
    "SendResult",
    "SendStatus",
    "SqliteSeen",
    "TableReceipt",
    "TlsConfig",
    "TransactionProducer",
    "TransactionSendResult",
    "reconsume_later",
]

"""The RayMQ client, asyncio API: the classes of `cluster.client` with `await` and `async for`.

from cluster.client.aio import Producer, PullConsumer

async with Producer("127.0.0.1:9876", group="orders") as producer:
    await producer.send("orders", b"4 apples", keys="order-1", sharding_key="customer-7")

async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
    await consumer.subscribe("orders")
    async for message in consumer:
        ...
"""

from cluster.client.admin.aio_admin import Admin
from cluster.client.consumer.aio_pull_consumer import PullConsumer
from cluster.client.consumer.aio_push_consumer import PushConsumer
from cluster.client.pop.aio_lite_consumer import LiteConsumer
from cluster.client.pop.aio_pop_consumer import PopConsumer
from cluster.client.producer.aio_producer import Producer
from cluster.client.producer.aio_transaction_producer import TransactionProducer

__all__ = [
    "Admin",
    "LiteConsumer",
    "PopConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
]

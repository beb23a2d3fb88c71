"""Messages with a priority from RayMQ's own clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.client import Admin, Message, PopConsumer, Producer, TransactionProducer, aio
from cluster.client.errors import ConfigInvalid, MessageRejected
from cluster.client.producer.transaction_core import LocalTransactionState
from store.message.message import MessageExt
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S

WAIT_MS = int(LIMIT_S * 1000)
KEYED = Message("T", b"x", properties={"__SHARDINGKEY": "k"}, priority=1)


@pytest.fixture
def urgent(cluster: Cluster) -> str:
    """A topic of type PRIORITY on one broker."""
    topic = f"{cluster.topic()}-urgent"
    with Admin(cluster.address) as admin:
        admin.create_topic(topic, queues=4, brokers=["a"], attributes={"message.type": "PRIORITY"})
    return topic


def received(cluster: Cluster, group: str, topic: str, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    with PopConsumer(cluster.address, group) as worker:
        while len(found) < count:
            found += worker.receive(topic, max_messages=count, timeout_ms=WAIT_MS)
    return found


def test_pop_consumer_receives_urgent_messages_first(cluster: Cluster, group: str, urgent: str) -> None:
    async def send_later() -> None:
        async with aio.Producer(cluster.address) as producer:
            assert (await producer.send(urgent, b"9", priority=9)).queue.queue_id == 3
            await producer.send_oneway(urgent, b"2", priority=2)
            await producer.flush()

    with Producer(cluster.address) as producer:
        assert producer.send(urgent, b"0", priority=0).queue.queue_id == 0
        assert producer.send_async(Message(urgent, b"1", priority=1)).result().queue.queue_id == 1
    asyncio.run(send_later())
    found = received(cluster, group, urgent, 4)
    assert [(each.body, each.priority) for each in found] == [(b"9", 9), (b"2", 2), (b"1", 1), (b"0", 0)]


def test_each_broker_has_its_own_queues_and_order_of_priorities(cluster: Cluster, group: str) -> None:
    topic = f"{cluster.topic()}-everywhere"
    with Admin(cluster.address) as admin:
        for broker, queues in (("a", 2), ("b", 4)):
            admin.create_topic(
                topic, queues=queues, brokers=[broker], attributes={"message.type": "PRIORITY"}
            )
    with Producer(cluster.address) as producer:
        sent = [producer.send(topic, b"x", priority=number // 8).queue for number in range(32)]
    assert {each.queue_id for each in sent if each.broker_name == "a"} == {0, 1}
    assert {each.queue_id for each in sent if each.broker_name == "b"} == {0, 1, 2, 3}
    found = received(cluster, group, topic, 32)
    for broker in "ab":
        queues = [each.queue_id for each in found if each.broker_name == broker]
        assert queues == sorted(queues, reverse=True)
        assert len(queues) == len([each for each in sent if each.broker_name == broker]) > 0


REFUSED: dict[str, dict[str, Any]] = {
    "negative": {"priority": -1},
    "text": {"priority": "1"},
    "too large": {"priority": 1 << 31},
    "sharding key": {"priority": 1, "sharding_key": "k"},
    "selector": {"priority": 1, "selector": lambda queues, message, argument: queues[0]},
    "delay": {"priority": 1, "delay_level": 3},
    "time": {"priority": 1, "deliver_after": 1_000},
    "property": {"properties": {"_SYS_MSG_PRIORITY_": "x"}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_priority_that_the_broker_would_ignore_is_refused(cluster: Cluster, case: str) -> None:
    async def send_later() -> None:
        async with aio.Producer(cluster.address) as later:
            with pytest.raises((ConfigInvalid, MessageRejected)):
                await later.send("T", b"x", **REFUSED[case])
            with pytest.raises((ConfigInvalid, MessageRejected)):
                await later.send_oneway("T", b"x", **REFUSED[case])

    with Producer(cluster.address) as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises((ConfigInvalid, MessageRejected), match=r"priority|queue"):
                send("T", b"x", **REFUSED[case])
    asyncio.run(send_later())


def test_priority_in_a_batch_or_transaction_is_refused(cluster: Cluster) -> None:
    with Producer(cluster.address) as producer:
        with pytest.raises(MessageRejected, match="one by one"):
            producer.send_batch([Message("T", b"x"), Message("T", b"x", priority=1)])
        with pytest.raises(MessageRejected, match="__SHARDINGKEY"):
            producer.send(KEYED)
        with pytest.raises(ConfigInvalid, match="priority"):
            producer.send(Message("T", b"x"), priority=1)
    with (
        TransactionProducer(cluster.address, "PG", lambda _: LocalTransactionState.COMMIT) as transactions,
        pytest.raises(MessageRejected, match="TRAN_MSG"),
    ):
        transactions.send_in_transaction(
            Message("T", b"x", priority=1), lambda _: LocalTransactionState.COMMIT
        )

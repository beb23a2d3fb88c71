"""Clients with a namespace: names of the cluster have its prefix, names that the application sees do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.client import (
    Admin,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    aio,
    reconsume_later,
)
from cluster.client.errors import ConfigInvalid, MessageRejected, QueueNotAssigned
from cluster.client.hooks import ConsumeContext, SendContext
from cluster.client.namespaces import Namespace
from cluster.client.results import ReconsumeLater
from tests.eventually import LIMIT_S, eventually

from .conftest import Cluster
from .test_pull_consumer import committed, poll_messages

SHOP = ProducerConfig(namespace="shop", group="sellers")


def orders(cluster: Cluster, name: str, queues: int = 2) -> str:
    """Create the topic `shop%<name>` on broker a and return the name without the namespace."""
    with Admin(cluster.address) as admin:
        admin.create_topic(f"shop%{name}", queues=queues, brokers=["a"])
    return name


def stored(cluster: Cluster, topic: str) -> list[tuple[str, bytes]]:
    """Return topic and body of all messages of `topic`, a name of the cluster."""
    with PullConsumer(cluster.address, "plain-reader") as reader:
        reader.assign(reader.queues(topic))
        reader.seek_to_beginning()
        count = sum(reader.end_offset(queue) for queue in reader.queues(topic))
        return sorted((each.topic, each.body) for each in poll_messages(reader, count)) if count else []


class Contexts:
    """Hook that records the names in its contexts."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def before_send(self, context: SendContext) -> None:
        self.names.append((context.group, context.topic))

    def after_send(self, context: SendContext) -> None:
        self.names.append((context.group, context.topic))

    def before_consume(self, context: ConsumeContext) -> None:
        self.names.append((context.group, context.queue.topic))

    def after_consume(self, context: ConsumeContext) -> None:
        self.names.append((context.group, context.messages[0].topic))


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("other%orders", "shop%other%orders"),
    ],
)
def test_names_are_wrapped_and_unwrapped(plain: str, wrapped: str) -> None:
    names = Namespace("shop")
    assert names.wrap(plain) == names.wrap(wrapped) == wrapped
    assert names.unwrap(wrapped) == names.unwrap(plain) == plain
    assert (Namespace.NONE.wrap(plain), Namespace.NONE.unwrap(wrapped)) == (plain, wrapped)


@pytest.mark.parametrize("name", ["RMQ_SYS_TRACE_TOPIC", "TBW102", "rmq_sys_wheel_timer", "CID_RMQ_SYS_T"])
def test_system_names_have_no_namespace(name: str) -> None:
    assert Namespace("shop").wrap(name) == name


def test_every_kind_of_send_adds_the_namespace_to_the_topic(cluster: Cluster) -> None:
    topic, hook = orders(cluster, "sends"), Contexts()
    config = ProducerConfig(namespace="shop", group="sellers", send_hooks=[hook])
    seen: list[MessageQueue] = []

    def last(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        seen.extend(queues)
        return queues[-1]

    with Producer(cluster.address, config=config) as producer:
        queues = producer.queues(topic)
        assert queues == (found := [MessageQueue(topic, "a", 0), MessageQueue(topic, "a", 1)])
        results = [
            producer.send(topic, b"0"),
            producer.send(topic, b"1", sharding_key="customer-7"),
            producer.send(topic, b"2", queue=queues[1]),
            producer.send(topic, b"3", selector=last),
            producer.send_async(topic, b"4").result(),
            producer.send_batch([Message(topic, b"5")]),
        ]
        producer.send_oneway(topic, b"6")
        receipt = producer.send_many(topic, [b"7", b"8"], sharding_keys=["a", "b"])
        queued = producer.send_many(topic, [b"9"], queue=queues[0])
        with pytest.raises(ConfigInvalid, match="cannot be sent to"):
            producer.send(topic, b"x", queue=MessageQueue("another", "a", 0))
        with pytest.raises(MessageRejected, match="127"):
            producer.send("t" * 125, b"x")
    assert {result.queue.topic for result in results} == {topic}
    assert (results[2].queue, results[3].queue, seen) == (queues[1], queues[1], found)
    assert (receipt.topic, {queue.topic for queue in receipt.queues}) == (topic, {topic})
    assert list(queued.queues) == [queues[0]]
    eventually(lambda: len(stored(cluster, f"shop%{topic}")) == 10)
    assert stored(cluster, f"shop%{topic}") == [(f"shop%{topic}", b"%d" % n) for n in range(10)]
    assert set(hook.names) == {("sellers", topic), ("sellers", "t" * 125)}


def test_pull_consumer_shows_names_without_the_namespace(cluster: Cluster) -> None:
    topic = orders(cluster, "pulls")
    with Producer(cluster.address, config=SHOP) as producer:
        first, second = producer.queues(topic)
        for queue in (first, second):
            producer.send_many(topic, [b"1", b"2", b"3"], queue=queue)
    config = ConsumerConfig(namespace="shop", group="billing")
    with PullConsumer(cluster.address, config=config) as consumer:
        assert consumer.queues(topic) == [first, second]
        consumer.assign([first, second])
        assert {each.topic for each in poll_messages(consumer, 6)} == {topic}
        assert consumer.assignment() == [first, second]
        assert consumer.lag() == {first: 0, second: 0}
        assert (consumer.position(first), consumer.end_offset(first)) == (3, 3)
        consumer.commit()
        consumer.commit({second: 2})
        assert (consumer.committed(first), consumer.committed(second)) == (3, 2)
        assert consumer.beginning_offset(first) == 0
        consumer.pause(second)
        consumer.seek_to_beginning([first, second])
        rows = consumer.poll_arrow(timeout_ms=int(LIMIT_S * 1000))
        assert rows.column("topic").to_pylist() == [topic] * 3
        consumer.resume(second)
        consumer.seek(first, 2)
        consumer.seek_to_end([second])
        assert [(each.topic, each.body) for each in poll_messages(consumer, 1)] == [(topic, b"3")]
        with pytest.raises(QueueNotAssigned):
            consumer.seek(MessageQueue("another", "a", 0), 0)
        with pytest.raises(ConfigInvalid, match="give a MessageQueue"):
            consumer.pause("first")  # type: ignore[arg-type]
    with Admin(cluster.address) as admin:
        offsets = admin.committed_offsets("shop%billing", f"shop%{topic}")
    assert {queue.topic for queue in offsets} == {f"shop%{topic}"}


def test_push_consumer_retries_and_buries_in_topics_with_the_namespace(cluster: Cluster, group: str) -> None:
    topic, hook = orders(cluster, "pushes", queues=1), Contexts()
    calls: list[tuple[str, bytes, int]] = []

    def listen(messages: list[MessageExt]) -> ReconsumeLater | None:
        [each] = messages
        calls.append((each.topic, each.body, each.reconsume_times))
        if each.body == b"bury":
            return reconsume_later(-1)
        return reconsume_later(1) if not each.reconsume_times else None

    config = PushConfig(namespace="shop", group=group, retry="broker", consume_hooks=[hook],
                        sync_interval_ms=100, commit_interval_ms=50)  # fmt: skip
    with Producer(cluster.address, config=SHOP) as producer:
        producer.send_many(topic, [b"retry", b"bury"])
    with PushConsumer(cluster.address, listener=listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(calls) == 3)
        [queue] = consumer.assignment()
        assert queue == MessageQueue(topic, "a", 0)
        consumer.pause(queue)
        consumer.resume(queue)
        eventually(lambda: committed(cluster, f"shop%{group}", f"%RETRY%shop%{group}") == 1)
    assert sorted(calls) == [(topic, b"bury", 0), (topic, b"retry", 0), (topic, b"retry", 1)]
    assert committed(cluster, f"shop%{group}", f"shop%{topic}") == 2
    assert set(hook.names) == {(group, topic), (group, f"%RETRY%{group}")}
    with Admin(cluster.address) as admin:
        [dead] = admin.dead_letters(f"shop%{group}")
        assert (dead.topic, dead.body) == (f"%DLQ%shop%{group}", b"bury")
        assert dead.properties["RETRY_TOPIC"] == f"shop%{topic}"
    reader = PullConsumer(cluster.address, config=ConsumerConfig(namespace="shop", group="dead-readers"))
    with reader:
        reader.assign(reader.queues(f"%DLQ%{group}"))
        assert [each.topic for each in poll_messages(reader, 1)] == [f"%DLQ%{group}"]


def test_ordered_consumer_with_a_namespace_locks_its_queues(cluster: Cluster, group: str) -> None:
    topic, bodies = orders(cluster, "ordered"), list[tuple[str, bytes]]()
    with Producer(cluster.address, config=SHOP) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(20)], sharding_keys=["one"] * 20)

    def listen(messages: list[MessageExt]) -> None:
        bodies.extend((each.topic, each.body) for each in messages)

    config = PushConfig(namespace="shop", group=group, ordered=True)
    with PushConsumer(cluster.address, listener=listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(bodies) == 20)
    assert bodies == [(topic, b"%d" % number) for number in range(20)]


def test_transactions_with_a_namespace_are_committed_and_checked(cluster: Cluster, group: str) -> None:
    topic, topics = orders(cluster, "transactions", queues=1), list[str]()

    def execute(message: Message) -> LocalTransactionState:
        topics.append(message.topic)
        return LocalTransactionState.COMMIT

    config = ProducerConfig(namespace="shop", group=group)
    with TransactionProducer(
        cluster.address, check_listener=execute, topics=[topic], config=config
    ) as producer:
        result = producer.send_in_transaction(Message(topic, b"committed"), execute)
    assert (result.queue.topic, topics) == (topic, [topic])
    assert stored(cluster, f"shop%{topic}") == [(f"shop%{topic}", b"committed")]


def test_request_and_reply_cross_a_namespace(cluster: Cluster, group: str) -> None:
    topic = orders(cluster, "requests")

    async def story() -> MessageExt:
        async with aio.Producer(cluster.address, config=SHOP) as producer:

            async def listen(messages: list[MessageExt]) -> None:
                for each in messages:
                    await producer.reply(each, f"{each.topic} {each.body.decode()}")

            config = PushConfig(namespace="shop", group=group)
            async with aio.PushConsumer(cluster.address, listener=listen, config=config) as consumer:
                await consumer.subscribe(topic)
                return await producer.request(topic, b"4 apples", timeout_ms=int(LIMIT_S * 1000))

    assert asyncio.run(story()).body == f"{topic} 4 apples".encode()


def test_invalid_namespaces_are_refused(cluster: Cluster) -> None:
    for name in ("a%b", "a b"):
        with pytest.raises(ConfigInvalid, match="give letters, digits"):
            Producer(cluster.address, config=ProducerConfig(namespace=name))
        with pytest.raises(ConfigInvalid, match="give letters, digits"):
            PullConsumer(cluster.address, "g", config=ConsumerConfig(namespace=name))
    with pytest.raises(ConfigInvalid, match="namespace is 7: it must be a string"):
        Producer(cluster.address, config=ProducerConfig(namespace=7))  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="255"):
        Producer(cluster.address, "g" * 253, config=ProducerConfig(namespace="shop"))

"""TransactionProducer over real sockets: commits, rollbacks, checks, restarts and wrong arguments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cluster.client import (
    Admin,
    LocalTransactionState,
    Message,
    MessageExt,
    ProducerConfig,
    PullConsumer,
    TransactionProducer,
    aio,
)
from cluster.client.errors import ConfigInvalid, TopicNotFound
from tests.eventually import LIMIT_S, eventually, eventually_async

from .conftest import Cluster
from .test_producer import read_all
from .test_pull_consumer import poll_messages

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
QUICK_CHECKS = {"transaction_check_interval_ms": 20, "transaction_timeout_ms": 0}


def never(message: MessageExt) -> LocalTransactionState:
    raise AssertionError(f"{message.msg_id} was checked")


def stored(cluster: Cluster, topic: str) -> int:
    """Return the number of messages in the queues of the topic."""
    stores = [broker.graph.loop.store for broker in cluster.brokers.values()]
    return sum(store.max_offset(*queue) for store in stores for queue in store.queues() if queue[0] == topic)


def visible(cluster: Cluster, topic: str) -> list[bytes]:
    return sorted(body for _, body, _ in read_all(cluster, topic))


def test_message_is_visible_after_the_local_transaction_commits(cluster: Cluster) -> None:
    topic = cluster.topic()
    calls: list[tuple[Message, list[bytes], int]] = []

    def execute(message: Message) -> LocalTransactionState:
        calls.append((message, visible(cluster, topic), threading.get_ident()))
        return COMMIT

    with TransactionProducer(cluster.address, "tx", never) as producer:
        given = Message(topic, b"4 apples", tags="fruit", keys="order-1")
        result = producer.send_in_transaction(given, execute)
        assert producer.send_in_transaction(Message(topic, b"x"), lambda _: ROLLBACK).state is ROLLBACK
        producer.send(topic, b"plain")
    [(message, before, thread)] = calls
    assert (message.uniq_key, before, thread) == (result.msg_id, [], threading.get_ident())
    assert (result.state, result.transaction_id) == (COMMIT, result.msg_id)
    assert "UNIQ_KEY" not in given.properties, "the caller's message is not modified"
    assert visible(cluster, topic) == [b"4 apples", b"plain"]
    with Admin(cluster.address) as admin:
        [by_key] = admin.messages_by_key(topic, "order-1")
    assert (by_key.tags, by_key.queue_id) == ("fruit", result.queue.queue_id)


def test_async_producer_accepts_coroutine_and_plain_functions(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def execute(message: Message) -> LocalTransactionState:
        await asyncio.sleep(0)
        return COMMIT

    async def story() -> None:
        async with aio.TransactionProducer(cluster.address, "tx", never) as producer:
            for number, function in enumerate((execute, lambda _: COMMIT, lambda _: ROLLBACK)):
                await producer.send_in_transaction(Message(topic, b"%d" % number), function)
            bodies = [Message(topic, b"%d" % number) for number in range(10, 30)]
            await asyncio.gather(*(producer.send_in_transaction(each, execute) for each in bodies))

    asyncio.run(story())
    assert visible(cluster, topic) == sorted([b"0", b"1", *(b"%d" % number for number in range(10, 30))])


def test_large_body_is_compressed_and_committed(cluster: Cluster) -> None:
    topic = cluster.topic()
    body = b"so long " * 20_000
    with TransactionProducer(cluster.address, "tx", never) as producer:
        producer.send_in_transaction(Message(topic, body), lambda _: COMMIT)
    assert visible(cluster, topic) == [body]


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_unknown_outcome_is_checked_by_the_broker(
    clusters: Callable[..., Cluster], state: LocalTransactionState
) -> None:
    cluster = clusters(**QUICK_CHECKS)
    topic = cluster.topic()
    checked: list[MessageExt] = []

    def check(message: MessageExt) -> LocalTransactionState:
        checked.append(message)
        return UNKNOWN if len(checked) < 3 else state

    with TransactionProducer(cluster.address, "tx", check) as producer:
        result = producer.send_in_transaction(Message(topic, b"1", keys="k"), lambda _: UNKNOWN)
        assert result.state is UNKNOWN
        eventually(lambda: len(checked) >= 3)
        eventually(lambda: all(b.describe()["open_transactions"] == 0 for b in cluster.brokers.values()))
    assert {message.uniq_key for message in checked} == {result.msg_id}
    first = checked[0]
    assert (first.topic, first.body, first.keys, first.queue_id) == (topic, b"1", "k", result.queue.queue_id)
    assert visible(cluster, topic) == ([b"1"] if state is COMMIT else [])


def test_failures_of_functions_leave_the_outcome_to_a_check(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(**QUICK_CHECKS)
    topic = cluster.topic()
    failures: list[str] = []

    def execute(message: Message) -> LocalTransactionState:
        raise ZeroDivisionError("the database failed")

    async def check(message: MessageExt) -> LocalTransactionState:
        if len(failures) < 2:
            failures.append(message.msg_id)
            if len(failures) == 1:
                raise ZeroDivisionError("the database failed again")
            return True  # type: ignore[return-value]
        return COMMIT

    wrong: Any = lambda _: "yes"  # noqa: E731 -- not a state
    with TransactionProducer(cluster.address, "tx", check) as producer:
        with pytest.raises(ZeroDivisionError):
            producer.send_in_transaction(Message(topic, b"1"), execute)
        with pytest.raises(TypeError, match="'yes'"):
            producer.send_in_transaction(Message(topic, b"2"), wrong)
        eventually(lambda: visible(cluster, topic) == [b"1", b"2"])
    assert len(failures) == 2


def test_another_producer_of_the_group_ends_the_transactions_of_a_killed_one(
    clusters: Callable[..., Cluster],
) -> None:
    """It has not sent anything: `topics` names the brokers that it must be known to."""
    cluster = clusters(**QUICK_CHECKS, transaction_check_max=1_000_000)
    topic = cluster.topic()
    with TransactionProducer(cluster.address, "tx", lambda _: UNKNOWN) as killed:
        for number in range(4):
            killed.send_in_transaction(Message(topic, b"%d" % number), lambda _: UNKNOWN)
    for name in list(cluster.brokers):
        cluster.stop_broker(name)
        cluster.start_broker(name)
    cluster.await_registration()

    async def story() -> None:
        check = aio.TransactionProducer(cluster.address, "tx", lambda _: COMMIT, topics=[topic])
        async with check:
            await eventually_async(lambda: stored(cluster, topic) == 4)
            await eventually_async(
                lambda: all(b.describe()["open_transactions"] == 0 for b in cluster.brokers.values())
            )

    asyncio.run(story())
    assert visible(cluster, topic) == [b"0", b"1", b"2", b"3"]


def test_commit_that_does_not_reach_the_broker_is_made_by_a_check(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1, **QUICK_CHECKS, transaction_check_max=1_000_000)
    topic = cluster.topic()
    outcomes: set[str] = set()

    def execute(message: Message) -> LocalTransactionState:
        outcomes.add(message.msg_id if isinstance(message, MessageExt) else message.uniq_key or "")
        cluster.stop_broker("a")
        return COMMIT

    def check(message: MessageExt) -> LocalTransactionState:
        return COMMIT if message.msg_id in outcomes else UNKNOWN

    config = ProducerConfig(heartbeat_ms=20, request_timeout_ms=int(LIMIT_S * 1000))
    with TransactionProducer(cluster.address, "tx", check, config=config) as producer:
        result = producer.send_in_transaction(Message(topic, b"1"), execute)
        assert result.state is COMMIT
        cluster.start_broker("a")
        cluster.await_registration()
        with PullConsumer(cluster.address, "reads") as consumer:
            consumer.assign(consumer.queues(topic))
            consumer.seek_to_beginning()
            [message] = poll_messages(consumer, 1)
    assert (message.body, message.uniq_key) == (b"1", result.msg_id)


def test_wrong_arguments_are_refused(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def coroutine(message: Message) -> LocalTransactionState:
        return COMMIT

    given: Any
    for given in (None, "no function"):
        with pytest.raises(ConfigInvalid, match="check_listener"):
            TransactionProducer(cluster.address, "tx", given)
        with pytest.raises(ConfigInvalid, match="check_listener"):
            aio.TransactionProducer(cluster.address, "tx", given)
    with TransactionProducer(cluster.address, "tx", never) as producer:
        with pytest.raises(ConfigInvalid, match="execute_local"):
            producer.send_in_transaction(Message(topic, b"1"), given)
        given = coroutine
        with pytest.raises(ConfigInvalid, match="coroutine"):
            producer.send_in_transaction(Message(topic, b"1"), given)
        with pytest.raises(ConfigInvalid, match="delayed"):
            producer.send_in_transaction(Message(topic, b"1", delay_level=3), lambda _: COMMIT)
        given = topic
        with pytest.raises(ConfigInvalid, match="not a Message"):
            producer.send_in_transaction(given, lambda _: COMMIT)
    assert visible(cluster, topic) == []


def test_half_that_is_not_stored_calls_no_local_transaction(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1, auto_create_topics=False)
    called: list[Message] = []

    def execute(message: Message) -> LocalTransactionState:
        called.append(message)
        return COMMIT

    with TransactionProducer(cluster.address, "tx", never) as producer, pytest.raises(TopicNotFound):
        producer.send_in_transaction(Message("Missing", b"1"), execute)
    assert called == []

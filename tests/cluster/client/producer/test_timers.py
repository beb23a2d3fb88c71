"""Delivery times and recalls of the Python producers, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.client import LocalTransactionState, Message, Producer, ProducerConfig, TransactionProducer, aio
from cluster.client.errors import BrokerRefused, ConfigInvalid, MessageRejected, TopicNotFound
from store.message.recall_handle import RecallHandle
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_producer import read_all
from tests.conftest import ClockAtRest
from tests.eventually import eventually, eventually_async

HOUR_MS = 3_600_000


@pytest.fixture
def timed(tmp_path: Path, clock: ClockAtRest) -> Iterator[Cluster]:
    """Run one broker whose clock is at rest; no time-out of it may expire when the test advances it."""
    cluster = Cluster(
        tmp_path,
        brokers=1,
        broker_clock=clock,
        os_page_cache_busy_ms=24 * HOUR_MS,
        idle_timeout_ms=24 * HOUR_MS,
        unread_timeout_ms=24 * HOUR_MS,
        client_expiry_ms=24 * HOUR_MS,
    )
    try:
        yield cluster
    finally:
        cluster.stop()


def unknown(_: Message) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


def bodies(cluster: Cluster, topic: str) -> list[bytes]:
    return sorted(body for _, body, _ in read_all(cluster, topic))


def rounds(cluster: Cluster) -> None:
    """Wait until the broker has delivered what is due."""
    before = cluster.brokers["a"].describe()["timer_rounds"]
    assert isinstance(before, int)
    eventually(lambda: cluster.brokers["a"].describe()["timer_rounds"] >= before + 2)  # type: ignore[operator]


def test_delay_and_delivery_time_of_a_message(timed: Cluster, clock: ClockAtRest) -> None:
    topic = timed.topic(queues=1)
    with Producer(timed.address) as producer:
        producer.send(Message(topic, b"delayed", delay_ms=1_500))
        producer.send(Message(topic, b"at a time", deliver_at_ms=clock.wall_ms() + 2_001))
        result = producer.send(Message(topic, b"now"))
        assert result.recall_handle == ""
        for elapsed_ms, expected in (
            (1_499, [b"now"]),
            (1_500, [b"delayed", b"now"]),
            (2_000, [b"delayed", b"now"]),
            (2_001, [b"at a time", b"delayed", b"now"]),
        ):
            clock.advance(elapsed_ms - (clock.wall_ms() - 1_700_000_000_000))
            rounds(timed)
            assert bodies(timed, topic) == expected


def test_keywords_of_a_send_delay_it_in_all_variants(timed: Cluster, clock: ClockAtRest) -> None:
    topic, now_ms = timed.topic(queues=1), clock.wall_ms()
    at = datetime.fromtimestamp((now_ms + 2_001) / 1000, UTC)
    delays: list[dict[str, Any]] = [
        {"deliver_after": 1_500}, {"deliver_after": timedelta(seconds=1.5)}, {"deliver_at": now_ms + 2_001},
        {"deliver_at": at}, {"delay_level": 1},
    ]  # fmt: skip

    async def send_async(number: int, delay: dict[str, Any]) -> None:
        async with aio.Producer(timed.address) as producer:
            await producer.send(topic, f"{number} aio send", **delay)
            await producer.send_oneway(topic, f"{number} aio oneway", **delay)

    with Producer(timed.address) as producer:
        for number, delay in enumerate(delays):
            producer.send(topic, f"{number} send", **delay)
            producer.send_async(topic, f"{number} async", **delay).result()
            producer.send_oneway(topic, f"{number} oneway", **delay)
            asyncio.run(send_async(number, delay))
        eventually(lambda: timed.brokers["a"].describe()["messages_in"] == 5 * len(delays))
        assert bodies(timed, topic) == []
        for elapsed_ms, due in ((1_500, 5 + 5 + 5), (2_001, 5 * len(delays))):
            clock.advance(elapsed_ms - (clock.wall_ms() - now_ms))
            eventually(lambda due=due: len(bodies(timed, topic)) == due)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("delay", "part"),
    [
        ({"delay_level": 1, "deliver_after": 5}, "give only one of"),
        ({"delay_level": -1}, "delay_level is -1"),
        ({"deliver_after": -5}, "deliver_after is -5"),
        ({"deliver_after": timedelta(0)}, "deliver_after is"),
        ({"deliver_at": datetime(2030, 1, 1)}, "with a time zone"),  # noqa: DTZ001 - a naive datetime
        ({"deliver_at": -1}, "deliver_at is -1"),
        ({"deliver_at": "tomorrow"}, "deliver_at is 'tomorrow'"),
    ],
)
def test_invalid_delay_of_a_send_is_refused(delay: dict[str, Any], part: str) -> None:
    with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ConfigInvalid, match=part):
            producer.send("T", b"x", **delay)
        with pytest.raises(ConfigInvalid, match="give either a Message with its delay"):
            producer.send(Message("T", b"x"), **delay)


def test_message_has_the_properties_of_rocketmqs_clients() -> None:
    message = Message("T", b"x", delay_ms=1_500, deliver_at_ms=77)
    assert message.properties == {"TIMER_DELAY_MS": "1500", "TIMER_DELIVER_MS": "77"}
    assert (message.delay_ms, message.deliver_at_ms) == (1_500, 77)
    assert (Message("T", b"x").delay_ms, Message("T", b"x").deliver_at_ms) == (0, 0)


def test_recalled_message_is_not_delivered(timed: Cluster, clock: ClockAtRest) -> None:
    topic = timed.topic(queues=1)
    with Producer(timed.address) as producer:
        later = producer.send(Message(topic, b"recalled", delay_ms=10_000))
        producer.send(Message(topic, b"kept", delay_ms=10_000))
        assert producer.recall(topic, later.recall_handle) == later.msg_id
        clock.advance(10_000)
        eventually(lambda: bodies(timed, topic) == [b"kept"])
        rounds(timed)
        with pytest.raises(BrokerRefused, match="timestamp invalid"):
            producer.recall(topic, later.recall_handle)
    assert bodies(timed, topic) == [b"kept"]


def test_recall_adds_the_namespace_to_the_topic(timed: Cluster, clock: ClockAtRest) -> None:
    with Producer(timed.address, config=ProducerConfig(namespace="shop")) as producer:
        for body in (b"recalled", b"kept"):
            later = producer.send(Message("orders", body, delay_ms=10_000))
            if body == b"recalled":
                assert producer.recall("orders", later.recall_handle) == later.msg_id
        clock.advance(10_000)
        eventually(lambda: bodies(timed, "shop%orders") == [b"kept"])


def test_asyncio_producer_recalls_a_message(timed: Cluster, clock: ClockAtRest) -> None:
    topic = timed.topic(queues=1)

    async def story() -> None:
        async with aio.Producer(timed.address) as producer:
            later = await producer.send(Message(topic, b"recalled", delay_ms=10_000))
            assert await producer.recall(topic, later.recall_handle) == later.msg_id
            await producer.send(Message(topic, b"kept", delay_ms=10_000))
        clock.advance(10_000)
        await eventually_async(lambda: asyncio.to_thread(lambda: bodies(timed, topic) == [b"kept"]))

    asyncio.run(story())


def test_wrong_times_and_handles_are_refused(timed: Cluster) -> None:
    topic = timed.topic(queues=1)
    handle = RecallHandle(topic, "a", 1, "ID")
    with Producer(timed.address) as producer:
        with pytest.raises(MessageRejected, match="max delay 259200000ms"):
            producer.send(Message(topic, b"x", delay_ms=259_200_001))
        with pytest.raises(MessageRejected, match="delayed message"):
            producer.send_batch([Message(topic, b"x"), Message(topic, b"y", delay_ms=5)])
        with pytest.raises(MessageRejected, match="delayed message"):
            producer.send_batch([Message(topic, b"x", deliver_at_ms=5)])
        with pytest.raises(ConfigInvalid, match="recall handle is invalid"):
            producer.recall(topic, "no handle")
        with pytest.raises(BrokerRefused, match="topic not match"):
            producer.recall(topic, handle._replace(topic="Other").encode())
        with pytest.raises(BrokerRefused, match="timestamp invalid"):
            producer.recall(topic, handle.encode())
        with pytest.raises(TopicNotFound):
            producer.recall("NoSuchTopic", handle.encode())
    with TransactionProducer(timed.address, "tx", unknown) as transactions:
        delayed = Message(topic, b"x", delay_ms=5)
        with pytest.raises(MessageRejected, match="cannot be delayed"):
            transactions.send_in_transaction(delayed, unknown)

"""LiteConsumer: subscribe, receive, ack and lose lite topics, on brokers that restart and move."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from cluster.client import Admin, LiteConfig, LiteConsumer, Message, MessageExt, Producer
from cluster.client.aio import LiteConsumer as AioLiteConsumer
from cluster.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConfigInvalid,
    InvalidRequest,
    LiteQuotaExceeded,
    MessageRejected,
    ReceiptExpired,
    TopicNotFound,
)
from store.message.group_config import SubscriptionGroupConfig
from store.message.lite_topics import lite_topic_queue
from tests.cluster.client.conftest import Cluster, ResponseDroppingProxy
from tests.eventually import LIMIT_S, eventually

WAIT_MS = int(LIMIT_S * 1000)
SESSIONS = [f"session-{number}" for number in range(20)]


def chats(cluster: Cluster, group: str, **attributes: str) -> str:
    """Create a topic of type LITE and a group that is bound to it; return the topic."""
    topic = f"{group}-chats"
    with Admin(cluster.address) as admin:
        admin.create_topic(topic, queues=4, attributes={"message.type": "LITE"})
        bound = {"lite.bind.topic": topic} | {f"lite.{name}": each for name, each in attributes.items()}
        admin.put_group(SubscriptionGroupConfig(group, attributes=bound))
    return topic


def send(cluster: Cluster, topic: str, *texts: str, names: list[str] = SESSIONS) -> None:
    with Producer(cluster.address) as producer:
        for text in texts:
            for name in names:
                producer.send(topic, text, lite_topic=name)


def receive_all(consumer: LiteConsumer, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    while len(found) < count:
        new = consumer.receive(max_messages=32, timeout_ms=WAIT_MS)
        consumer.ack(new)
        found += new
    return found


def by_topic(messages: list[MessageExt]) -> dict[str | None, list[tuple[int, bytes]]]:
    found: dict[str | None, list[tuple[int, bytes]]] = {}
    for each in messages:
        found.setdefault(each.lite_topic, []).append((each.queue_offset, each.body))
    return found


def test_subscribed_lite_topics_are_received_in_order_from_all_brokers(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group)
    with LiteConsumer(cluster.address, group, topic) as consumer:
        consumer.subscribe(*SESSIONS[:15])
        consumer.unsubscribe(*SESSIONS[10:15])
        assert consumer.subscription() == set(SESSIONS[:10])
        send(cluster, topic, "0", "1")
        found = receive_all(consumer, 20)
        assert by_topic(found) == {name: [(0, b"0"), (1, b"1")] for name in SESSIONS[:10]}
        assert len({each.broker_name for each in found}) == 2
        assert consumer.receive(timeout_ms=0) == []
        consumer.subscribe(SESSIONS[15])  # a consumer of a new lite topic gets what is there
        assert by_topic(receive_all(consumer, 2)) == {SESSIONS[15]: [(0, b"0"), (1, b"1")]}
    with Admin(cluster.address) as admin:
        eventually(lambda: admin.group_connection(group) is None)


def test_message_is_sent_to_the_queue_that_the_proxy_would_choose(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group)
    with Producer(cluster.address) as producer:
        for name in SESSIONS:
            queue = producer.queues(topic)[lite_topic_queue(name, 8)]
            assert producer.send(topic, b"x", lite_topic=name).queue == queue
            assert producer.send(Message(topic, b"x", lite_topic=name)).queue == queue


def test_batch_blocks_its_lite_topic_until_it_is_acked_or_released(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group)
    send(cluster, topic, "0", "1", names=["s"])
    with (
        LiteConsumer(cluster.address, group, topic) as one,
        LiteConsumer(cluster.address, group, topic) as two,
    ):
        one.subscribe("s")
        (first,) = one.receive(timeout_ms=WAIT_MS)
        two.subscribe("s")
        assert two.receive(timeout_ms=0) == []
        one.extend(first, WAIT_MS)
        one.nack(first)
        one.unsubscribe("s")
        (again,) = two.receive(timeout_ms=WAIT_MS)
        assert (again.body, again.reconsume_times) == (b"0", 1)
        two.suspend(again, 1)
        (same,) = two.receive(timeout_ms=WAIT_MS)
        assert (same.body, same.reconsume_times) == (b"0", 1)
        two.ack(same)
        with pytest.raises(ReceiptExpired):
            two.extend(same, 1_000)
        assert [each.body for each in two.receive(timeout_ms=WAIT_MS)] == [b"1"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", b"0"), ("latest", b"3"), (2, b"2"), (datetime(2020, 1, 1, tzinfo=UTC), b"0")],
)
def test_start_says_where_a_group_begins(cluster: Cluster, group: str, start: Any, expected: bytes) -> None:
    topic = chats(cluster, group)
    send(cluster, topic, "0", "1", "2", names=["s"])
    with LiteConsumer(cluster.address, group, topic) as consumer:
        consumer.subscribe("s", start=start)
        send(cluster, topic, "3", names=["s"])
        (message,) = consumer.receive(timeout_ms=WAIT_MS)
        assert message.body == expected


def test_exclusive_lite_topic_is_lost_to_the_last_subscriber(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group, **{"sub.model": "Exclusive"})
    lost: list[str] = []
    with (
        LiteConsumer(cluster.address, group, topic, on_lost=lost.append) as one,
        LiteConsumer(cluster.address, group, topic) as two,
    ):
        one.subscribe("s", "t")
        two.subscribe("s")
        eventually(lambda: lost == ["s"])  # once, although both brokers say so
        assert one.subscription() == {"t"}
        send(cluster, topic, "0", names=["s", "t"])
        assert set(by_topic(receive_all(one, 1))) == {"t"}
        assert set(by_topic(receive_all(two, 1))) == {"s"}
        one.subscribe("s")
        eventually(lambda: two.subscription() == set())
        send(cluster, topic, "1", names=["s"])
        assert set(by_topic(receive_all(one, 1))) == {"s"}


def test_group_of_a_wildcard_receives_all_lite_topics(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group, **{"sub.wildcard": "true"})
    send(cluster, topic, "0")
    with LiteConsumer(cluster.address, group, topic) as consumer:
        assert by_topic(receive_all(consumer, 20)) == {name: [(0, b"0")] for name in SESSIONS}


def test_subscription_over_the_quota_is_refused_and_changes_nothing(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group, **{"sub.client.quota": "1"})
    with LiteConsumer(cluster.address, group, topic) as consumer:
        consumer.subscribe("first")
        with pytest.raises(LiteQuotaExceeded, match=r"lite\.sub\.client\.quota"):
            consumer.subscribe(*(f"s{number}" for number in range(302)))
        assert consumer.subscription() == {"first"}
        send(cluster, topic, "0", names=["first", "s1"])
        assert set(by_topic(receive_all(consumer, 1))) == {"first"}


def test_subscriptions_are_sent_again_to_a_broker_that_restarted(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters()
    topic = chats(cluster, group)
    with LiteConsumer(cluster.address, group, topic) as consumer:
        consumer.subscribe(*SESSIONS)
        send(cluster, topic, "0")
        receive_all(consumer, 20)
        cluster.stop_broker("a")
        consumer.subscribe("late")  # the other broker accepts it
        cluster.start_broker("a")
        cluster.await_registration()
        send(cluster, topic, "1", names=[*SESSIONS, "late"])
        found = receive_all(consumer, 21)
        assert by_topic(found) == {name: [(1, b"1")] for name in SESSIONS} | {"late": [(0, b"1")]}


def test_waiting_consumer_survives_a_restart_of_its_only_broker(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters(brokers=1)
    topic = chats(cluster, group)
    with LiteConsumer(cluster.address, group, topic) as consumer, ThreadPoolExecutor(1) as pool:
        consumer.subscribe("s")
        waiting = pool.submit(consumer.receive, timeout_ms=WAIT_MS)
        cluster.stop_broker("a")
        cluster.start_broker("a")
        send(cluster, topic, "0", names=["s"])
        assert [each.body for each in waiting.result(LIMIT_S)] == [b"0"]
        cluster.stop_broker("a")
        with pytest.raises(BrokerUnreachable):
            consumer.receive(timeout_ms=0)
        with pytest.raises(BrokerUnreachable):
            consumer.subscribe("t")
        assert consumer.subscription() == {"s"}
        cluster.start_broker("a")


def test_lost_response_to_a_pop_costs_no_message_and_no_delivery(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters(brokers=1)
    proxy = ResponseDroppingProxy(
        cluster, "a", lambda code, number: code == RequestCode.POP_LITE_MESSAGE and number == 0
    )
    cluster.stop_broker("a")
    cluster.start_broker("a", advertised_port=proxy.port)
    topic = chats(cluster, group)
    send(cluster, topic, "0", "1", names=["s"])
    with LiteConsumer(cluster.address, group, topic) as consumer:
        consumer.subscribe("s")
        found = consumer.receive(max_messages=8, timeout_ms=WAIT_MS)  # long before they are visible again
        assert proxy.dropped_count == 1
        assert [(each.body, each.reconsume_times) for each in found] == [(b"0", 0), (b"1", 0)]
        consumer.ack(found)
        send(cluster, topic, "2", names=["s"])
        assert [each.body for each in consumer.receive(timeout_ms=WAIT_MS)] == [b"2"]
    proxy.stop()


@pytest.mark.parametrize("leave", [LiteConsumer.close, lambda consumer: consumer.unsubscribe(*SESSIONS)])
def test_messages_that_were_not_returned_are_released(
    cluster: Cluster, group: str, leave: Callable[[LiteConsumer], None]
) -> None:
    topic = chats(cluster, group)
    with (
        LiteConsumer(cluster.address, group, topic) as one,
        LiteConsumer(cluster.address, group, topic) as two,
    ):
        one.subscribe(*SESSIONS)
        send(cluster, topic, "0")
        assert len(one.receive(timeout_ms=WAIT_MS, max_messages=1)) == 1  # another broker's messages wait
        leave(one)
        two.subscribe(*SESSIONS)
        found = receive_all(two, 19)
        assert {each.reconsume_times for each in found} == {0}


def test_late_notice_of_a_broker_does_not_end_a_newer_subscription(cluster: Cluster, group: str) -> None:
    """While one consumer sends its subscription, notices arrive that another had taken the lite topic."""
    topic = chats(cluster, group, **{"sub.model": "Exclusive"})
    two = AioLiteConsumer(cluster.address, group, topic)
    takes_over: list[str] = []

    class TakeOver:
        """Lets the other consumer take the lite topic just before a request is sent."""

        def before_call(self, address: str, command: RemotingCommand, /) -> None:
            if command.code == RequestCode.LITE_SUBSCRIPTION_CTL and takes_over:
                cluster.run(two.subscribe(takes_over.pop()))

        def after_call(self, *_: object) -> None:
            """Do nothing."""

    config = LiteConfig(call_hooks=[TakeOver()])
    with LiteConsumer(cluster.address, group, topic, config=config) as one:
        one.subscribe("s")
        takes_over.append("s")
        one.subscribe("s")
        assert takes_over == []
        assert one.subscription() == {"s"}
        send(cluster, topic, "0", names=["s"])
        assert [each.body for each in one.receive(timeout_ms=WAIT_MS)] == [b"0"]
    cluster.run(two.close())


def test_broker_that_was_down_gets_the_start_of_a_subscription_later(
    clusters: Callable[..., Cluster], group: str
) -> None:
    cluster = clusters()
    topic = chats(cluster, group)
    with Producer(cluster.address) as producer:
        name = next(n for n in SESSIONS if producer.send(topic, b"0", lite_topic=n).queue.broker_name == "a")
    with LiteConsumer(cluster.address, group, topic) as consumer, Admin(cluster.address) as admin:
        consumer.receive(timeout_ms=0)
        cluster.stop_broker("a")
        consumer.subscribe(name, start="latest")
        cluster.start_broker("a")
        cluster.await_registration()

        def is_known() -> bool:
            assert consumer.receive(timeout_ms=0) == []
            return bool(admin.lite_topic(topic, name)["a"]["subscriber"])

        eventually(is_known)
        send(cluster, topic, "1", names=[name])
        assert [each.body for each in consumer.receive(timeout_ms=WAIT_MS)] == [b"1"]


def test_subscriptions_are_renewed_before_they_expire(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.client.pop.lite_core.SYNC_MS", 20)
    topic = chats(cluster, group)
    with LiteConsumer(cluster.address, group, topic) as consumer, Admin(cluster.address) as admin:
        consumer.subscribe("s")
        client_id = admin.lite_topic(topic, "s")["a"]["subscriber"][0]["clientId"]

        def renewed_ms() -> list[int]:
            found = admin.lite_client(topic, group, client_id)
            return [content["lastAccessTime"] for content in found.values()]

        for _ in range(3):
            last_ms = max(renewed_ms())
            eventually(lambda last_ms=last_ms: min(renewed_ms()) > last_ms)


def test_async_consumer_receives_and_acknowledges(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group)

    async def consume() -> dict[str | None, list[tuple[int, bytes]]]:
        async with AioLiteConsumer(cluster.address, group, topic) as consumer:
            await consumer.subscribe(*SESSIONS)
            found: list[MessageExt] = []
            while len(found) < 20:
                messages = await consumer.receive(max_messages=4, timeout_ms=WAIT_MS)
                await consumer.ack(messages)
                found += messages
            return by_topic(found)

    send(cluster, topic, "0")
    assert cluster.run(consume()) == {name: [(0, b"0")] for name in SESSIONS}


def test_calls_with_invalid_arguments_are_refused(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group)
    with pytest.raises(ConfigInvalid, match="topic"):
        LiteConsumer(cluster.address, group)
    with Producer(cluster.address) as producer:
        for fields in ({"lite_topic": "a$b"}, {"lite_topic": ""}, {"lite_topic": "s", "sharding_key": "k"}):
            with pytest.raises(ConfigInvalid, match="lite"):
                producer.send(topic, b"x", **fields)  # type: ignore[arg-type]
        with pytest.raises(MessageRejected, match="LITE"):
            producer.send(cluster.topic(), b"x", lite_topic="s")
    with LiteConsumer(cluster.address, group, topic) as consumer:
        for names in ((), ("a b",), ("x" * 65,)):
            with pytest.raises(ConfigInvalid, match="lite topic"):
                consumer.subscribe(*names)
        for start in ("first", -1, True, datetime.fromisoformat("2026-01-01")):
            with pytest.raises(ConfigInvalid, match="start"):
                consumer.subscribe("s", start=start)
        with pytest.raises(ConfigInvalid, match="max_messages"):
            consumer.receive(max_messages=33)
        with pytest.raises(ConfigInvalid, match="not received"):
            consumer.ack(MessageExt(topic=topic, body=b""))
        with pytest.raises(ConfigInvalid, match="delay_ms"):
            consumer.suspend(MessageExt(topic=topic, body=b""), 0)
    with pytest.raises(ClientClosed):
        consumer.receive()
    with LiteConsumer(cluster.address, f"{group}-plain", topic) as consumer:
        with pytest.raises(InvalidRequest, match="bind"):
            consumer.receive(timeout_ms=WAIT_MS)
        assert consumer.subscription() == set()
    config = LiteConfig(cluster.address, topic="missing")
    with LiteConsumer(group=group, config=config) as consumer, pytest.raises(TopicNotFound):
        consumer.receive(timeout_ms=WAIT_MS)


def test_waiting_receive_ends_when_the_consumer_is_closed(cluster: Cluster, group: str) -> None:
    topic = chats(cluster, group)
    consumer = LiteConsumer(cluster.address, group, topic)
    consumer.subscribe("s")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.receive, timeout_ms=WAIT_MS)
        consumer.close()
        with pytest.raises(ClientClosed):
            waiting.result(LIMIT_S)

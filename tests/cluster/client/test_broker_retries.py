"""Push consumer with `retry="broker"`: delay levels, dead letters, refused send-backs, released queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from actors.broker.features.retry.send_back import SendBack
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from cluster.client import (
    Admin,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
    reconsume_later,
)
from cluster.client.errors import ConfigInvalid
from cluster.client.results import ReconsumeLater
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, NEVER_S, eventually

from .conftest import Cluster
from .test_pull_consumer import committed, fill

A_DAY_MS = 86_400_000
LEVEL_MS = {3: 10_000, 4: 30_000, 5: 60_000}
Handler = Callable[[SendBack, RequestContext], None]
store_retry = SendBack.send_back
SETTINGS: dict[str, Any] = {"retry": "broker", "sync_interval_ms": 100, "commit_interval_ms": 50}


@pytest.fixture
def intercepted(monkeypatch: pytest.MonkeyPatch) -> list[Handler]:
    """Return a list; a handler in it replaces that of CONSUMER_SEND_MSG_BACK of the test's cluster."""
    handlers: list[Handler] = []

    def handle(send_back: SendBack, context: RequestContext) -> None:
        handler = handlers[0] if handlers else store_retry
        handler(send_back, context)

    monkeypatch.setattr(SendBack, "send_back", handle)
    return handlers


@pytest.fixture
def cluster(intercepted: list[Handler], clusters: Callable[..., Cluster], clock: ClockAtRest) -> Cluster:
    """Return a cluster of one broker whose delays pass only when `clock` is advanced."""
    # An advanced clock looks to the broker like a stall, so no time-out may expire.
    return clusters(brokers=1, broker_clock=clock, os_page_cache_busy_ms=A_DAY_MS, max_hold_ms=A_DAY_MS,
                    wait_in_pull_queue_ms=A_DAY_MS, idle_timeout_ms=A_DAY_MS)  # fmt: skip


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.address) as opened:
        yield opened


def delayed(admin: Admin, level: int) -> list[bytes]:
    """Return the bodies of the messages that were stored with a delay level."""
    queue = MessageQueue("SCHEDULE_TOPIC_XXXX", "a", level - 1)
    return [message.body for message in admin.messages_at(queue, 0, 100)]


def dead(admin: Admin, group: str) -> list[MessageExt]:
    """Return the dead letters of a group."""
    topic = f"%DLQ%{group}"
    return admin.messages_at(MessageQueue(topic, "a", 0), 0, 100) if topic in admin.topics() else []


@pytest.mark.parametrize("is_async", [False, True])
def test_broker_redelivers_failed_message_then_dead_letters_it(
    cluster: Cluster, admin: Admin, group: str, clock: ClockAtRest, is_async: bool
) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 3)
    calls: list[tuple[str, bytes, int]] = []

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        [message] = messages
        calls.append((message.topic, message.body, message.reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if message.body == b"1" else ConsumeStatus.CONSUME_SUCCESS

    async def listen_async(messages: list[MessageExt]) -> ConsumeStatus:
        return listen(messages)

    config = PushConfig(max_reconsume_times=2, **SETTINGS)
    with PushConsumer(
        cluster.address, group, listen_async if is_async else listen, config=config
    ) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 3, "the offset after the failed message")
        assert delayed(admin, 3) == [b"1"]
        clock.advance(LEVEL_MS[3])
        eventually(lambda: delayed(admin, 4) == [b"1"], "the message that failed twice")
        clock.advance(LEVEL_MS[4])
        [letter] = eventually(lambda: dead(admin, group))
        eventually(lambda: committed(cluster, group, f"%RETRY%{group}") == 2)
    assert [call for call in calls if call[1] == b"1"] == [(topic, b"1", times) for times in range(3)]
    assert len(calls) == 5
    assert (letter.body, letter.reconsume_times, letter.properties["RETRY_TOPIC"]) == (b"1", 3, topic)


def test_reconsume_later_selects_level_or_dead_letter_queue(
    cluster: Cluster, admin: Admin, group: str, clock: ClockAtRest
) -> None:
    topic = cluster.topic(queues=1)
    seen: list[tuple[bytes, int]] = []

    def listen(messages: list[MessageExt]) -> ReconsumeLater | None:
        [message] = messages
        seen.append((message.body, message.reconsume_times))
        level = int(message.properties["level"])
        return None if message.reconsume_times else reconsume_later(level)

    with PushConsumer(cluster.address, group, listen, config=PushConfig(**SETTINGS)) as consumer:
        consumer.subscribe(topic)
        with Producer(cluster.address, "sends") as producer:
            for level in (5, 99, -1, 0):
                producer.send(topic, f"{level}", properties={"level": f"{level}"})
        eventually(lambda: committed(cluster, group, topic) == 4)
        assert (delayed(admin, 5), delayed(admin, 18), delayed(admin, 3)) == ([b"5"], [b"99"], [b"0"])
        assert [letter.body for letter in dead(admin, group)] == [b"-1"]
        clock.advance(LEVEL_MS[5])
        eventually(lambda: (b"5", 1) in seen)


@pytest.mark.parametrize("level", [-2, 1.0, "3", None, True])
def test_invalid_delay_level_is_refused(level: Any) -> None:
    with pytest.raises(ConfigInvalid, match="is invalid: give 1 to 18, 0 for the broker's choice, or -1"):
        reconsume_later(level)


def test_retry_in_place_ignores_level_and_dead_letters_at_once(
    cluster: Cluster, admin: Admin, group: str
) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 2)
    calls: list[bytes] = []

    def listen(messages: list[MessageExt]) -> ReconsumeLater | None:
        calls.append(messages[0].body)
        if messages[0].body == b"1":
            return reconsume_later(-1)
        return reconsume_later(5) if calls.count(b"0") == 1 else None

    config = PushConfig(commit_interval_ms=50, retry_backoff_ms=(1,))
    with (
        structlog.testing.capture_logs() as logs,
        PushConsumer(cluster.address, group, listen, config=config) as consumer,
    ):
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 2)
    assert (calls.count(b"0"), calls.count(b"1")) == (2, 1)
    assert [letter.body for letter in dead(admin, group)] == [b"1"]
    assert delayed(admin, 5) == []
    [ignored] = [each for each in logs if each["event"] == "delay_level_ignored"]
    assert (ignored["delay_level"], ignored["remedy"]) == (5, 'set PushConfig(retry="broker")')


def test_refused_send_back_is_retried_in_place_without_the_others(
    cluster: Cluster, admin: Admin, group: str, intercepted: list[Handler]
) -> None:
    topic = cluster.topic(queues=1)
    requests: list[RequestContext] = []

    def refuse_second(handler: SendBack, context: RequestContext) -> None:
        requests.append(context)
        if len(requests) == 2:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the disk is full")
        store_retry(handler, context)

    intercepted.append(refuse_second)
    with Producer(cluster.address, "sends") as producer:
        producer.send_batch([Message(topic, body) for body in (b"0", b"1", b"2")])
    calls: list[list[tuple[bytes, int]]] = []

    def listen(messages: list[MessageExt]) -> bool:
        calls.append([(message.body, message.reconsume_times) for message in messages])
        return False

    config = PushConfig(consume_batch=3, retry_backoff_ms=(1,), **SETTINGS)
    with PushConsumer(cluster.address, group, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 3)
        assert calls == [[(b"0", 0), (b"1", 0), (b"2", 0)], [(b"1", 1)]]
        assert delayed(admin, 3) == [b"0", b"2", b"1"]


def test_release_of_queue_waits_for_send_back(
    cluster: Cluster, admin: Admin, group: str, intercepted: list[Handler]
) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 1)
    arrived, unblock = threading.Event(), threading.Event()

    def hold(handler: SendBack, context: RequestContext) -> None:
        async def respond() -> None:
            await asyncio.to_thread(unblock.wait, LIMIT_S)
            store_retry(handler, context)

        arrived.set()
        context.spawn(respond())

    intercepted.append(hold)
    config = PushConfig(close_timeout_ms=int(NEVER_S * 1000), **SETTINGS)
    consumer = PushConsumer(cluster.address, group, lambda _messages: False, config=config).start()
    consumer.subscribe(topic)
    assert arrived.wait(LIMIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(lambda: not consumer.assignment(), "the queue that is being released")
    assert committed(cluster, group, topic) == 0
    unblock.set()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert committed(cluster, group, topic) == 1
    assert delayed(admin, 3) == [b"0"]

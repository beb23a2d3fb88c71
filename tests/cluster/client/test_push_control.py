"""Push consumer: starting offsets, fetch limits, pauses, consume timeouts, hooks and expired leases."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import structlog

from actors.broker.core.group.client_requests import ClientRequests
from actors.transport.request import RequestContext
from actors.wire.bodies.groups import SyncGroupRequest
from cluster.client import (
    Admin,
    ConsumerConfig,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from cluster.client.consumer.listener import Listener
from cluster.client.consumer.push_core import PushCore
from cluster.client.consumer.queue_work import CacheLimits, QueueWork
from cluster.client.errors import ConfigInvalid, QueueNotAssigned
from cluster.client.hooks import ConsumeContext
from cluster.client.transport.loop_thread import LoopThread
from store.common.clock import Clock
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually

from .conftest import LONG_LEASE_MS, SMALL_STORE, Cluster
from .test_pull_consumer import committed, fill
from .test_push_consumer import Seen

T = TypeVar("T")


class OpenedCore:
    """A PushCore on the clients' event loop, so tests can inspect its queues."""

    def __init__(
        self, cluster: Cluster, group: str, listener: Listener, clock: Clock | None = None, **settings: Any
    ) -> None:
        config = PushConfig(nameservers=cluster.address, group=group, **settings)
        self._thread = LoopThread.shared()
        self._core = self._thread.call(lambda: PushCore(config, listener, clock))

    def __enter__(self) -> OpenedCore:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.run(self._core.close())

    def call(self, act: Callable[[PushCore], T]) -> T:
        """Run `act` on the event loop and return its result."""
        return self._thread.call(lambda: act(self._core))

    def works(self) -> list[QueueWork]:
        """Return the queues that are assigned now, including those of the retry topic."""
        return self.call(lambda core: core.held.all())


def send(cluster: Cluster, topic: str, *numbers: int, **options: Any) -> list[int]:
    """Send messages one at a time; return their store timestamps."""
    with Producer(cluster.address, "sends") as producer:
        results = [producer.send(topic, f"{number}", **options) for number in numbers]
    with Admin(cluster.address) as admin:
        return [admin.message_by_id(result.offset_msg_id).store_timestamp for result in results]


@pytest.mark.parametrize("consume_from", ["earliest", "latest", "timestamp"])
def test_new_group_starts_at_consume_from(cluster: Cluster, group: str, consume_from: Any) -> None:
    topic = cluster.topic(queues=1)
    queue = MessageQueue(topic, "a", 0)
    [first_ms] = send(cluster, topic, 1, queue=queue)
    eventually(lambda: send(cluster, topic, 2, queue=queue) != [first_ms])
    [third_ms] = send(cluster, topic, 3, queue=queue)
    timestamp_ms = third_ms if consume_from == "timestamp" else None
    settings: dict[str, Any] = {"consume_from": consume_from, "consume_timestamp_ms": timestamp_ms}
    seen = Seen()
    with OpenedCore(cluster, group, seen, **settings) as consumer:
        consumer.call(lambda core: core.subscribe(topic, "*"))
        eventually(lambda: queue in [work.queue for work in consumer.works()])
        send(cluster, topic, 4, queue=queue)
        eventually(lambda: 4 in seen.numbers)
    missing = {"earliest": set(), "latest": {1, 2, 3}, "timestamp": {1}}[consume_from]
    assert missing.isdisjoint(seen.numbers)
    assert {1, 2, 3, 4} - set(seen.numbers) <= missing | ({2} if consume_from == "timestamp" else set())
    with PullConsumer(cluster.address, f"{group}-pulls", config=ConsumerConfig(**settings)) as pulls:
        pulls.assign([queue])
        assert pulls.position(queue) >= {"earliest": 0, "latest": 4, "timestamp": 1}[consume_from]


def test_default_consume_timestamp_is_half_an_hour_ago(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    with PullConsumer(cluster.address, group, config=ConsumerConfig(consume_from="timestamp")) as consumer:
        consumer.assign(consumer.queues(topic))
        assert sum(consumer.position(queue) for queue in consumer.assignment()) == 0


def test_paused_queues_are_not_consumed_and_lose_nothing(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    seen = Seen()
    with PushConsumer(cluster.address, group, seen) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(consumer.assignment()) == 2)
        quiet, loud = consumer.assignment()
        consumer.pause(quiet)
        send(cluster, topic, *range(20), queue=quiet)
        send(cluster, topic, *range(20, 40), queue=loud)
        seen.wait_for(20)
        assert set(seen.numbers) == set(range(20, 40))
        consumer.pause()
        consumer.resume(quiet)
        seen.wait_for(40)
        send(cluster, topic, *range(40, 50), queue=loud)
        send(cluster, topic, 50, queue=quiet)
        seen.wait_for(41)
        assert set(seen.numbers) == {*range(40), 50}
        consumer.resume()
        seen.wait_for(51)
        with pytest.raises(QueueNotAssigned):
            consumer.pause(MessageQueue(topic, "c", 0))
    assert set(seen.numbers.values()) == {1}
    assert committed(cluster, group, topic) == 51


def test_pause_applies_to_queues_assigned_later(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send(cluster, topic, *range(10))
    seen = Seen()
    with OpenedCore(cluster, group, seen) as consumer:
        consumer.call(lambda core: core.pause([]))
        consumer.call(lambda core: core.subscribe(topic, "*"))
        eventually(lambda: sum(not work.is_retry_queue for work in consumer.works()) == 2)
        assert all(work.is_paused and work.fetcher.is_paused for work in consumer.works())
        assert not seen.numbers
        consumer.call(lambda core: core.resume([]))
        seen.wait_for(10)


def test_retry_of_paused_queue_waits_for_resume(cluster: Cluster, group: str) -> None:
    topic, calls, paused = cluster.topic(queues=1), [], threading.Event()

    def listen(messages: list[MessageExt]) -> bool:
        calls.append(messages[0].reconsume_times)
        assert paused.wait(LIMIT_S)
        return len(calls) > 1

    with OpenedCore(cluster, group, listen, retry_backoff_ms=(50,)) as consumer:
        consumer.call(lambda core: core.subscribe(topic, "*"))
        send(cluster, topic, 1)
        eventually(lambda: len(calls) == 1)
        consumer.call(lambda core: core.pause([]))
        paused.set()
        eventually(lambda: any(work.paused_tasks for work in consumer.works()))
        assert calls == [0]
        consumer.call(lambda core: core.resume([]))
        eventually(lambda: calls == [0, 1])


@pytest.mark.parametrize(
    "limit",
    [
        {"max_cached_messages": 100},
        {"max_cached_bytes": 10_000},
        {"max_offset_span": 100},
        {"max_cached_messages_for_topic": 200},
        {"max_cached_bytes_for_topic": 20_000},
    ],
)
def test_fetching_stops_at_queue_limits(cluster: Cluster, group: str, limit: dict[str, int]) -> None:
    topic, seen, unblock = cluster.topic(queues=1), Seen(), threading.Event()
    fill(cluster, topic, 3_000)

    def listen(messages: list[MessageExt]) -> None:
        unblock.wait(LIMIT_S)
        seen(messages)

    settings: dict[str, Any] = {"consume_threads": 1, "consume_batch": 10, "fetch_bytes": 8 * 1024, **limit}
    with OpenedCore(cluster, group, listen, **settings) as consumer:
        consumer.call(lambda core: core.subscribe(topic, "*"))
        eventually(lambda: [work.is_full for work in consumer.works()].count(True) == 2)
        assert all(work.fetcher.is_paused for work in consumer.works() if work.is_full)
        assert all(work.process_queue.cached_messages < 200 for work in consumer.works())
        unblock.set()
        seen.wait_for(3_000)
    assert set(seen.numbers.values()) == {1}


def test_topic_limits_are_shared_by_queues_and_at_least_one() -> None:
    config = PushConfig(max_cached_messages_for_topic=3_000, max_cached_bytes_for_topic=3)
    assert CacheLimits.of(config, 2) == CacheLimits(1_000, 1, 2_000)
    assert CacheLimits.of(config, 6) == CacheLimits(500, 1, 2_000)
    assert CacheLimits.of(PushConfig(), 50) == CacheLimits(1_000, 100 << 20, 2_000), "RocketMQ's thresholds"
    for name in ("max_cached_messages_for_topic", "consume_timeout_ms", "max_offset_span"):
        with pytest.raises(ConfigInvalid, match=name):
            PushConfig(**{name: 0})  # type: ignore[arg-type]


def test_overdue_message_is_sent_back_and_redelivered(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest
) -> None:
    soon = SMALL_STORE.model_copy(update={"message_delay_level": "1s 1s 1s"})
    cluster = clusters(brokers=1, store=soon)
    topic, unblock = cluster.topic(queues=1), threading.Event()
    calls: list[tuple[str, str, int]] = []

    def listen(messages: list[MessageExt]) -> None:
        message = messages[0]
        calls.append((message.topic, message.body.decode(), message.reconsume_times))
        if message.body == b"7" and not message.reconsume_times:
            unblock.wait(LIMIT_S)

    config = {"consume_timeout_ms": 300, "commit_interval_ms": 50, "sync_interval_ms": 200}
    with OpenedCore(cluster, group, listen, clock, **config) as consumer:
        consumer.call(lambda core: core.subscribe(topic, "*"))
        send(cluster, topic, 6, 7, 8)
        eventually(lambda: len(calls) == 3)
        eventually(lambda: sum(len(work.running) for work in consumer.works()) == 1)
        assert committed(cluster, group, topic) < 2
        clock.advance(config["consume_timeout_ms"] + 1)
        eventually(lambda: committed(cluster, group, topic) == 3)
        assert not unblock.is_set(), "the listener still runs but does not block the commit"
        eventually(lambda: (topic, "7", 1) in calls)
        unblock.set()
    assert Counter(calls) == {(topic, "6", 0): 1, (topic, "7", 0): 1, (topic, "8", 0): 1, (topic, "7", 1): 1}


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
@pytest.mark.parametrize("is_async", [False, True])
def test_consume_hooks_see_each_call_and_its_outcome(
    cluster: Cluster, group: str, kind: type[BaseException], is_async: bool
) -> None:
    topic = cluster.topic(queues=1)
    before: list[bool | None] = []
    after: list[tuple[bytes, bool | None, type[BaseException] | None]] = []

    class RecordingHook:
        def before_consume(self, context: ConsumeContext) -> None:
            before.append(context.is_success)

        def after_consume(self, context: ConsumeContext) -> None:
            error = context.error
            after.append((context.messages[0].body, context.is_success, error and type(error)))
            raise kind

    def listen(messages: list[MessageExt]) -> bool:
        if messages[0].reconsume_times == 0:
            raise ValueError("retry this message")
        return messages[0].reconsume_times == 2

    async def listen_async(messages: list[MessageExt]) -> bool:
        return listen(messages)

    config = PushConfig(retry_backoff_ms=(1,), consume_hooks=[RecordingHook()], consume_threads=1)
    with PushConsumer(
        cluster.address, group, listen_async if is_async else listen, config=config
    ) as consumer:
        consumer.subscribe(topic)
        send(cluster, topic, 1)
        eventually(lambda: len(after) == 3)
    assert before == [None] * 3
    assert after == [(b"1", False, ValueError), (b"1", False, None), (b"1", True, None)]


class LostSyncs:
    """Makes brokers ignore SYNC_GROUP requests of `client_id`. Create it before the brokers start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client_id = ""
        self.count = 0
        """Number of ignored requests."""
        sync_group = ClientRequests.sync_group

        def lose(requests: ClientRequests, context: RequestContext) -> None:
            if SyncGroupRequest.decode(context.command.body).client_id == self.client_id:
                self.count += 1
            else:
                sync_group(requests, context)

        monkeypatch.setattr(ClientRequests, "sync_group", lose)

    def lose_requests_of(self, cluster: Cluster, group: str) -> None:
        """Ignore the requests of the only member of `group`."""
        with Admin(cluster.address) as admin:
            [self.client_id] = admin.group_members(group)


@pytest.mark.parametrize("pulls", [False, True])
def test_suspended_member_drops_queues_not_assigned_again(
    clusters: Callable[..., Cluster],
    group: str,
    pulls: bool,
    clock: ClockAtRest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    syncs = LostSyncs(monkeypatch)
    cluster = clusters(brokers=1, rebalancer_clock=clock)
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    entered, unblock, seen = threading.Semaphore(0), threading.Event(), Seen()

    def stuck(messages: list[MessageExt]) -> None:
        entered.release()
        unblock.wait(LIMIT_S)

    settings: dict[str, Any] = {"lease_ms": 1_000, "sync_interval_ms": 100, "request_timeout_ms": 200}
    first: PushConsumer | PullConsumer
    if pulls:
        first = PullConsumer(cluster.address, group, config=ConsumerConfig(**settings), clock=clock)
        first.subscribe(topic)
        assert first.poll(1, timeout_ms=60_000)
    else:
        config = PushConfig(consume_threads=1, close_timeout_ms=100, **settings)
        first = PushConsumer(cluster.address, group, stuck, config=config, clock=clock).start()
        first.subscribe(topic)
        assert entered.acquire(timeout=LIMIT_S)
    [queue] = first.assignment()
    syncs.lose_requests_of(cluster, group)
    lasting = PushConfig(lease_ms=LONG_LEASE_MS, sync_interval_ms=100)
    with (
        structlog.testing.capture_logs() as logs,
        PushConsumer(cluster.address, group, seen, config=lasting) as second,
    ):
        second.subscribe(topic)
        # Advance in steps: a request of the first member in flight renews its lease once more.
        eventually(lambda: clock.advance(20) or len(seen.numbers) == 10)
        assert first.assignment() == [queue], "the first member has no response yet: it is suspended"
        assert not any(each["event"] == "queue_lost" for each in logs)
        syncs.client_id = ""  # the request in flight fails after its timeout
        eventually(lambda: clock.advance(20) or any(each["event"] == "queue_lost" for each in logs))
        assert not unblock.is_set(), "the queue is dropped without waiting for its listener"
        unblock.set()
        first.close()
        # The second member's commit may be fenced when the first one returns. Then the queue is assigned to
        # the second member again, which consumes it again.
        eventually(lambda: committed(cluster, group, topic) == 10)


def test_lease_expiry_during_sync_suspends_consumer(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = LostSyncs(monkeypatch)
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    config = ConsumerConfig(
        lease_ms=1_000, sync_interval_ms=100, request_timeout_ms=int(LIMIT_S * 1000), auto_commit=False
    )
    consumer = PullConsumer(cluster.address, group, config=config, clock=clock)
    with structlog.testing.capture_logs() as logs, consumer:
        consumer.subscribe(topic)
        eventually(consumer.assignment)
        syncs.lose_requests_of(cluster, group)
        try:
            eventually(lambda: syncs.count == 1)
            clock.advance(config.lease_ms)
            eventually(lambda: any(each["event"] == "consumer_suspended" for each in logs))
            fill(cluster, topic, 10)
            assert consumer.poll(timeout_ms=0) == []
            assert syncs.count == 1
        finally:
            syncs.client_id = ""  # `close` syncs once more


def test_expired_lease_stops_fetching_and_consumption(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = LostSyncs(monkeypatch)
    cluster = clusters(brokers=1)
    topic, calls, gate = cluster.topic(queues=1), [], threading.Event()
    send(cluster, topic, *range(10))

    def listen(messages: list[MessageExt]) -> None:
        calls.append(messages)
        assert gate.wait(LIMIT_S)

    settings: dict[str, Any] = {"consume_threads": 1, "lease_ms": 1_000, "sync_interval_ms": 100}
    with OpenedCore(cluster, group, listen, clock, **settings) as consumer:
        consumer.call(lambda core: core.subscribe(topic, "*"))
        eventually(lambda: len(calls) == 1)
        syncs.lose_requests_of(cluster, group)
        eventually(lambda: syncs.count)
        clock.advance(1_000)
        eventually(lambda: all(work.fetcher.is_paused for work in consumer.works()))
        gate.set()
        eventually(lambda: not any(work.running for work in consumer.works()))
        assert len(calls) == 1
        syncs.client_id = ""
        eventually(lambda: clock.advance(20) or len(calls) >= 10)  # the request in flight times out first


def test_push_consumer_refuses_consumer_config() -> None:
    with pytest.raises(ConfigInvalid, match="config is a ConsumerConfig: a push consumer needs a PushConfig"):
        PushConsumer("127.0.0.1:9876", "g", print, config=ConsumerConfig())  # type: ignore[arg-type]

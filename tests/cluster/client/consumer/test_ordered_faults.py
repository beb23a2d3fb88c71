"""Ordered push consumers over faults: leases and locks that end, broker restarts, and late responses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actors.broker.core.group.queue_locks import QueueLocks
from actors.rebalancer.group import Group
from actors.transport.request import RequestContext
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from actors.wire.bodies.locks import LockRequest
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from cluster.client import MessageExt, MessageQueue, Producer, PushConfig, PushConsumer
from cluster.client.consumer import queue_locks
from tests.checkers import Recorder, assert_consistent
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually

from ..conftest import Cluster
from ..test_pull_consumer import committed, fill
from .test_ordered import ORDERED, History, lock_as

LEASE_MS = 20_000  # shorter than the validity of a lock, 30 s
PATIENT = replace(ORDERED, lease_ms=LEASE_MS, request_timeout_ms=int(LIMIT_S * 1000))


class HangingListener(History):
    """History whose calls wait until `unblock` is set. `entered` is set by the first call."""

    def __init__(self, recorder: Recorder, process: str, group: str) -> None:
        super().__init__(recorder, process, group)
        self.entered, self.unblock = threading.Event(), threading.Event()

    def __call__(self, messages: list[MessageExt]) -> None:
        super().__call__(messages)
        self.entered.set()
        assert self.unblock.wait(LIMIT_S)


def member(
    cluster: Cluster, group: str, name: str, listener: History, clock: ClockAtRest | None = None
) -> PushConsumer:
    config = replace(PATIENT, instance_name=name)
    return PushConsumer(cluster.address, group, listener, config=config, clock=clock)


def test_worker_does_not_call_the_listener_after_the_lease_has_expired(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP: the listener returns before the event loop has noticed that the lease is over."""
    is_lost, sync = threading.Event(), Group.sync

    def sync_unless_lost(members: Group, request: SyncGroupRequest, *options: Any) -> SyncGroupReply:
        if is_lost.is_set() and "@lost#" in request.client_id:
            raise Refused(ResponseCode.SYSTEM_ERROR, "as if the request were lost")
        return sync(members, request, *options)

    monkeypatch.setattr(Group, "sync", sync_unless_lost)
    cluster = clusters(brokers=1, rebalancer_clock=clock)
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    hanging, history = HangingListener(Recorder(), "lost", group), History(Recorder(), "next", group)
    config = replace(PATIENT, instance_name="lost", sync_interval_ms=LEASE_MS // 2)
    with PushConsumer(cluster.address, group, hanging, config=config, clock=clock) as lost:
        lost.subscribe(topic)
        assert hanging.entered.wait(LIMIT_S)
        is_lost.set()
        clock.advance(LEASE_MS)
        hanging.unblock.set()
        with member(cluster, group, "next", history) as successor:
            successor.subscribe(topic)
            eventually(lambda: committed(cluster, group, topic) == 10)
            assert hanging.numbers == {("a", 0): [0]}
            assert history.numbers["a", 0][-9:] == list(range(1, 10))


def test_late_release_does_not_release_a_queue_that_is_assigned_again(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to UNLOCK_BATCH_MQ arrives after the queue was lost, given away, and assigned again."""
    held_back: list[RequestContext] = []
    reports: list[SyncGroupRequest] = []
    unlock_batch, sync = QueueLocks.unlock_batch, Group.sync

    def unlock_late(locks: QueueLocks, context: RequestContext) -> RemotingCommand | None:
        response = unlock_batch(locks, context)
        request = LockRequest.decode(context.command.body)
        if "@z#" not in request.client_id or request.queues != [queue] or held_back:
            return response
        held_back.append(context)
        return None

    def sync_and_report(members: Group, request: SyncGroupRequest, *options: Any) -> SyncGroupReply:
        reports.extend([request] if "@z#" in request.client_id else [])
        return sync(members, request, *options)

    monkeypatch.setattr(QueueLocks, "unlock_batch", unlock_late)
    monkeypatch.setattr(Group, "sync", sync_and_report)
    cluster = clusters(brokers=1)
    topic, recorder = cluster.topic(queues=1), Recorder()
    queue = MessageQueue(topic, "a", 0)
    hanging, history = HangingListener(recorder, "z", group), History(recorder, "a", group)
    with (
        member(cluster, group, "z", hanging, clock) as consumer,
        Producer(cluster.address, group) as producer,
    ):
        consumer.subscribe(topic)
        eventually(lambda: consumer.assignment() == [queue])
        with member(cluster, group, "a", history) as first:  # the first client id gets the queue
            first.subscribe(topic)
            eventually(lambda: held_back)
            clock.advance(LEASE_MS)
            eventually(lambda: first.assignment() == [queue])
            producer.send(topic, b"0")
            eventually(lambda: committed(cluster, group, topic) == 1)
        producer.send(topic, b"1")
        assert hanging.entered.wait(LIMIT_S), "the queue is assigned again"

        async def respond() -> None:
            held_back[0].reply(RemotingCommand.response())

        cluster.run(respond())
        reports.clear()
        eventually(lambda: len(reports) >= 3)
        assert all(queue in {item.queue for item in report.owned} for report in reports)
        assert lock_as(cluster, "java", group, queue) == []
        hanging.unblock.set()
        producer.send(topic, b"2")
        eventually(lambda: committed(cluster, group, topic) == 3)
    assert hanging.numbers == {("a", 0): [1, 2]}
    assert_consistent(recorder.events)


def test_lock_renewal_that_failed_is_repeated_before_the_next_period(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_batch, failures = QueueLocks.lock_batch, threading.Semaphore(0)

    def lock_or_fail(locks: QueueLocks, context: RequestContext) -> RemotingCommand:
        if failures.acquire(blocking=False):
            clock.advance(queue_locks.VALID_MS)
            monkeypatch.setattr(queue_locks, "RENEWAL_MS", int(10 * LIMIT_S * 1000))
            raise Refused(ResponseCode.SYSTEM_BUSY, "as during a restart")
        return lock_batch(locks, context)

    monkeypatch.setattr(QueueLocks, "lock_batch", lock_or_fail)
    monkeypatch.setattr(queue_locks, "RENEWAL_MS", 20)
    monkeypatch.setattr(queue_locks, "RETRY_MS", 20)
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    history = History(Recorder(), "p", group)
    with (
        PushConsumer(cluster.address, group, history, config=ORDERED, clock=clock) as consumer,
        Producer(cluster.address, group) as producer,
    ):
        consumer.subscribe(topic)
        producer.send(topic, b"0")
        eventually(lambda: history.count == 1)
        failures.release()
        eventually(lambda: clock.monotonic_ns())
        producer.send(topic, b"1")
        eventually(lambda: history.count == 2)


def test_broker_restart_during_retries_keeps_the_order(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "RENEWAL_MS", 20)
    monkeypatch.setattr(queue_locks, "RETRY_MS", 20)
    cluster = clusters(brokers=1)
    topic, is_healed = cluster.topic(queues=1), threading.Event()
    fill(cluster, topic, 10)
    calls: list[int] = []

    def listen(messages: list[MessageExt]) -> bool:
        calls.append(int(messages[0].body))
        return calls[-1] != 3 or is_healed.is_set()

    config: PushConfig = replace(ORDERED, max_reconsume_times=1_000_000)
    with PushConsumer(cluster.address, group, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: calls.count(3) > 1)
        cluster.stop_broker("a")
        attempts = calls.count(3)
        eventually(lambda: calls.count(3) > attempts)
        cluster.start_broker("a")
        is_healed.set()
        fill(cluster, topic, 1)
        eventually(lambda: committed(cluster, group, topic) == 11)
    # The consumer may have lost a commit, but no message is consumed before message 3.
    assert [number for number in calls if number != 3] == [0, 1, 2, *range(4, 10), 0]


def test_listener_call_that_outlasts_its_lock_is_not_committed(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is lost during the call: the message is consumed again after the queue is locked again."""
    is_stolen, refusals, lock = threading.Event(), [], QueueLocks.lock

    def lock_unless_stolen(locks: QueueLocks, *arguments: Any) -> list[MessageQueue]:
        if not is_stolen.is_set():
            return lock(locks, *arguments)
        refusals.append(arguments)
        return []

    monkeypatch.setattr(QueueLocks, "lock", lock_unless_stolen)
    monkeypatch.setattr(queue_locks, "RENEWAL_MS", 20)
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 3)
    hanging = HangingListener(Recorder(), "p", group)
    with PushConsumer(cluster.address, group, hanging, config=ORDERED) as consumer:
        consumer.subscribe(topic)
        assert hanging.entered.wait(LIMIT_S)
        is_stolen.set()
        eventually(lambda: not consumer.assignment(), "the queue is being released")
        hanging.unblock.set()
        refusals.clear()
        eventually(lambda: len(refusals) > 1, "requests for the lock of the queue that is assigned again")
        assert committed(cluster, group, topic) == 0
        is_stolen.clear()
        eventually(lambda: committed(cluster, group, topic) == 3)
    assert hanging.numbers == {("a", 0): [0, 0, 1, 2]}

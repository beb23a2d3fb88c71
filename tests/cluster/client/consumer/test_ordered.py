"""Ordered push consumers: one call per queue, retries in place, queue locks, and owners that change."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from actors.broker.core.group.queue_locks import QueueLocks
from actors.rebalancer.group import Group
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from actors.wire.bodies.locks import LockedQueues, LockRequest
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from cluster.client import Admin, MessageExt, MessageQueue, Producer, PullConsumer, PushConfig, PushConsumer
from cluster.client.consumer import queue_locks
from cluster.client.errors import ConfigInvalid
from store.common.clock import SystemClock
from tests.checkers import Recorder, assert_consistent
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually
from tests.faults.member import numbered

from ..conftest import LONG_LEASE_MS, Cluster
from ..test_pull_consumer import committed, fill, poll_numbers

ORDERED = PushConfig(
    ordered=True,
    consume_threads=8,
    retry_backoff_ms=(1,),
    lease_ms=LONG_LEASE_MS,
    sync_interval_ms=100,
    commit_interval_ms=50,
)

Listen = Callable[[list[MessageExt]], Any]


class History:
    """Listener that records its calls and the numbers of each queue."""

    def __init__(self, recorder: Recorder, process: str, group: str) -> None:
        self.numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._recorder = recorder
        self._process = process
        self._group = group

    def __call__(self, messages: list[MessageExt]) -> None:
        for message in messages:
            recorded = numbered(message)
            self._recorder.consume("invoke", self._process, self._group, recorded)
            self.numbers[message.broker_name, message.queue_id].append(int(message.body))
            self._recorder.consume("ok", self._process, self._group, recorded)

    @property
    def count(self) -> int:
        return sum(map(len, list(self.numbers.values())))


def as_coroutine(listen: Listen) -> Callable[[list[MessageExt]], Awaitable[Any]]:
    """Return `listen` as a coroutine function that yields to the event loop before it returns."""

    async def listen_async(messages: list[MessageExt]) -> Any:
        result = listen(messages)
        await asyncio.sleep(0)
        return result

    return listen_async


def lock_as(cluster: Cluster, client_id: str, group: str, *queues: MessageQueue) -> list[MessageQueue]:
    """Lock queues of one broker as a Java member does, and return those that it got."""
    return LockedQueues.decode(
        _lock(cluster, RequestCode.LOCK_BATCH_MQ, client_id, group, queues).body
    ).queues


def unlock_as(cluster: Cluster, client_id: str, group: str, *queues: MessageQueue) -> None:
    _lock(cluster, RequestCode.UNLOCK_BATCH_MQ, client_id, group, queues)


def _lock(
    cluster: Cluster, code: RequestCode, client_id: str, group: str, queues: Iterable[MessageQueue]
) -> RemotingCommand:
    async def send() -> RemotingCommand:
        client = RemotingClient(SystemClock())
        request = LockRequest(group, client_id, list(queues))
        address = cluster.brokers[request.queues[0].broker_name].address
        response = await client.invoke(
            address, RemotingCommand(code, body=request.encode()), int(LIMIT_S * 1000)
        )
        await client.close()
        return response

    return asyncio.run(send())


@pytest.mark.parametrize("is_async", [False, True])
def test_ordered_consumer_calls_listener_once_at_a_time_per_queue(
    cluster: Cluster, group: str, is_async: bool
) -> None:
    topic = cluster.topic(queues=2)
    fill(cluster, topic, 400)
    running: set[tuple[str, int]] = set()
    overlaps: list[MessageExt] = []
    history = History(Recorder(), "p", group)

    def listen(messages: list[MessageExt]) -> None:
        queue = (messages[0].broker_name, messages[0].queue_id)
        overlaps.extend(messages if queue in running else [])
        running.add(queue)
        history(messages)

    def listen_and_return(messages: list[MessageExt]) -> None:
        listen(messages)
        running.discard((messages[0].broker_name, messages[0].queue_id))

    async def listen_async(messages: list[MessageExt]) -> None:
        listen(messages)
        await asyncio.sleep(0)  # another call of the same queue would run now
        running.discard((messages[0].broker_name, messages[0].queue_id))

    listener = listen_async if is_async else listen_and_return
    with PushConsumer(cluster.address, group, listener, config=ORDERED) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: history.count == 400)
    assert overlaps == []
    assert all(numbers == sorted(numbers) for numbers in history.numbers.values())
    assert committed(cluster, group, topic) == 400


def test_blocked_queue_does_not_block_other_queues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 100)
    unblock = threading.Event()
    numbers: dict[str, list[int]] = defaultdict(list)

    def listen(messages: list[MessageExt]) -> None:
        numbers[messages[0].broker_name].append(int(messages[0].body))
        if messages[0].broker_name == "a":
            assert unblock.wait(LIMIT_S)

    with PushConsumer(
        cluster.address, group, listen, ordered=True, config=replace(ORDERED, ordered=False)
    ) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(numbers["b"]) == 50 and numbers["a"])
        assert len(numbers["a"]) == 1
        unblock.set()
        eventually(lambda: len(numbers["a"]) == 50)
    assert all(each == sorted(each) for each in numbers.values())


@pytest.mark.parametrize("is_async", [False, True])
def test_failing_message_suspends_its_queue_until_it_is_dead_lettered(
    clusters: Callable[..., Cluster], group: str, is_async: bool
) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 8)
    calls: list[tuple[int, int]] = []

    def listen(messages: list[MessageExt]) -> bool:
        calls.extend((int(message.body), message.reconsume_times) for message in messages)
        return calls[-1][0] != 3 and calls[-1] != (5, 0)

    listener = as_coroutine(listen) if is_async else listen
    config = replace(ORDERED, max_reconsume_times=2)
    with PushConsumer(cluster.address, group, listener, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 8)
    assert calls == [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (4, 0), (5, 0), (5, 1), (6, 0), (7, 0)]
    with PullConsumer(cluster.address, f"{group}-dead") as dead:
        dead.assign(dead.queues(f"%DLQ%{group}"))
        assert poll_numbers(dead, 1) == [3]


def test_order_holds_while_members_join_and_leave(cluster: Cluster, group: str) -> None:
    topic, recorder = cluster.topic(queues=4), Recorder()
    members = [History(recorder, name, group) for name in "abc"]
    consumers = [PushConsumer(cluster.address, group, each, config=ORDERED) for each in members]

    def total() -> int:
        return sum(member.count for member in members)

    with Producer(cluster.address, group) as producer:
        for number, consumer in enumerate((consumers[0], consumers[1], consumers[2])):
            consumer.start().subscribe(topic)
            values = [f"{number * 200 + n}" for n in range(200)]
            producer.send_many(topic, [value.encode() for value in values], sharding_keys=values)
            eventually(lambda number=number: total() >= (number + 1) * 200)
        eventually(lambda: sorted(len(c.assignment()) for c in consumers) == [2, 3, 3])
        consumers[0].close()
        values = [f"{n}" for n in range(600, 800)]
        producer.send_many(topic, [value.encode() for value in values], sharding_keys=values)
        eventually(lambda: total() >= 800)
    for consumer in consumers[1:]:
        consumer.close()
    assert_consistent(recorder.events)
    numbers = [number for member in members for each in member.numbers.values() for number in each]
    assert sorted(numbers) == list(range(800))
    assert committed(cluster, group, topic) == 800


def test_member_waits_for_the_lock_of_a_java_member(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=2)
    fill(cluster, topic, 20)
    queues = [MessageQueue(topic, "a", number) for number in range(2)]
    assert lock_as(cluster, "java", group, queues[0]) == queues[:1]
    history = History(Recorder(), "p", group)
    with PushConsumer(cluster.address, group, history, config=ORDERED) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: history.count == 10)
        assert history.numbers.keys() == {("a", 1)}
        assert consumer.assignment() == queues[1:]
        unlock_as(cluster, "java", group, queues[0])
        eventually(lambda: history.count == 20)
        assert lock_as(cluster, "java", group, *queues) == [], "the member holds both locks"
    assert lock_as(cluster, "java", group, *queues) == queues, "a closed member has released its locks"
    assert all(numbers == sorted(numbers) for numbers in history.numbers.values())


def test_queue_is_released_if_another_member_gets_its_lock(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters(brokers=1)
    topic, is_stolen = cluster.topic(queues=1), threading.Event()
    lock = QueueLocks.lock

    def lock_unless_stolen(locks: QueueLocks, *arguments: Any) -> list[MessageQueue]:
        return [] if is_stolen.is_set() else lock(locks, *arguments)

    monkeypatch.setattr(QueueLocks, "lock", lock_unless_stolen)
    monkeypatch.setattr(queue_locks, "RENEWAL_MS", 20)
    history = History(Recorder(), "p", group)
    with (
        PushConsumer(cluster.address, group, history, config=ORDERED) as consumer,
        Producer(cluster.address, group) as producer,
    ):
        consumer.subscribe(topic)
        producer.send(topic, b"0")
        eventually(lambda: committed(cluster, group, topic) == 1)
        is_stolen.set()
        eventually(lambda: not consumer.assignment())
        producer.send(topic, b"1")
        # The other member consumes the message and commits.
        with PullConsumer(cluster.address, f"{group}-witness") as witness:
            witness.assign(witness.queues(topic))
            assert poll_numbers(witness, 2) == [0, 1]
        assert history.count == 1
        is_stolen.clear()
        producer.send(topic, b"2")
        eventually(lambda: history.count == 3)
    assert history.numbers == {("a", 0): [0, 1, 2]}


def test_listener_is_not_called_after_the_lock_has_expired(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_silent, refusals = threading.Event(), []
    lock_batch = QueueLocks.lock_batch

    def lock_unless_silent(locks: QueueLocks, context: RequestContext) -> RemotingCommand:
        if is_silent.is_set():
            refusals.append(context)
            raise Refused(ResponseCode.SYSTEM_BUSY, "not now")
        return lock_batch(locks, context)

    monkeypatch.setattr(QueueLocks, "lock_batch", lock_unless_silent)
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
        is_silent.set()
        refusals.clear()
        eventually(lambda: len(refusals) > 1)  # no renewal is in flight
        clock.advance(30_000)
        producer.send(topic, b"1")
        refusals.clear()
        eventually(lambda: len(refusals) > 3)
        assert history.count == 1
        is_silent.clear()
        eventually(lambda: history.count == 2)
    assert history.numbers == {("a", 0): [0, 1]}


def test_queue_of_a_lost_member_is_taken_over_under_a_later_generation(
    clusters: Callable[..., Cluster], group: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_lost, sync = threading.Event(), Group.sync

    def sync_unless_lost(members: Group, request: SyncGroupRequest, *options: Any) -> SyncGroupReply:
        if is_lost.is_set() and "@lost#" in request.client_id:
            raise Refused(ResponseCode.SYSTEM_ERROR, "as if the request were lost")
        return sync(members, request, *options)

    monkeypatch.setattr(Group, "sync", sync_unless_lost)
    cluster = clusters(brokers=1, rebalancer_clock=clock)
    topic = cluster.topic(queues=1)
    queue = MessageQueue(topic, "a", 0)
    fill(cluster, topic, 10)
    history = History(Recorder(), "p", group)
    entered, unblock = threading.Event(), threading.Event()

    def hang(messages: list[MessageExt]) -> None:
        entered.set()
        unblock.wait(LIMIT_S)

    config = replace(ORDERED, instance_name="lost", close_timeout_ms=0)
    lost = PushConsumer(cluster.address, group, hang, config=config)
    lost.start().subscribe(topic)
    assert entered.wait(LIMIT_S)
    is_lost.set()
    with PushConsumer(cluster.address, group, history, config=ORDERED) as successor:
        successor.subscribe(topic)
        with Admin(cluster.address) as admin:
            eventually(lambda: len(admin.group_members(group)) == 2)
        clock.advance(LONG_LEASE_MS + 1)  # the broker's lock of the lost member has not expired
        eventually(lambda: history.count == 10)
        assert lock_as(cluster, "java", group, queue) == []
    unblock.set()
    lost.close()
    assert history.numbers == {("a", 0): list(range(10))}


def test_setting_ordered_must_be_a_boolean() -> None:
    with pytest.raises(ConfigInvalid, match="ordered is 'yes': give True or False"):
        PushConsumer("127.0.0.1:1", "group", print, ordered="yes")  # type: ignore[arg-type]

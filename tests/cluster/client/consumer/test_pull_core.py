"""PullCore: expired leases, fenced commits, and queues whose starting offset is not known yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from actors.rebalancer.group import Group
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from cluster.client import ConsumerConfig, MessageQueue, PullConsumer
from cluster.client.consumer.fetcher import PullSender
from cluster.client.consumer.pull_core import MIN_SHARE_BYTES, PullCore
from cluster.client.errors import CommitFenced, QueueNotAssigned
from cluster.client.group.offset_client import Commit, Committed, OffsetClient
from cluster.client.transport.loop_thread import LoopThread
from tests.cluster.client.conftest import LONG_LEASE_MS, Cluster
from tests.cluster.client.test_pull_consumer import committed, fill
from tests.eventually import LIMIT_S, eventually

QUICK: dict[str, Any] = {"sync_interval_ms": 200, "lease_ms": LONG_LEASE_MS, "auto_commit": False}


@contextmanager
def opened(
    cluster: Cluster, group: str, topic: str, **settings: Any
) -> Iterator[tuple[PullCore, LoopThread]]:
    """Yield a core that has subscribed to `topic`, and its event loop thread."""
    config = ConsumerConfig(nameservers=cluster.address, group=group, **{**QUICK, **settings})
    thread = LoopThread.shared()
    core = thread.call(lambda: PullCore(config))
    thread.call(lambda: core.subscribe(topic, "*"))
    yield core, thread
    thread.run(core.close(committing=False))


def take(core: PullCore, count: int) -> None:
    """Wait until `count` messages have been taken."""
    left = count

    def taken() -> bool:
        nonlocal left
        left -= len(core.deliveries.take_messages(left))
        return not left

    eventually(taken)


def test_suspended_consumer_returns_nothing_and_drops_lost_queue(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    with opened(cluster, group, topic) as (core, thread):
        take(core, 1)
        thread.call(lambda: core.suspended(is_suspended=True))
        assert core.deliveries.take_messages(500) == []
        assert not core.deliveries.has_messages
        thread.call(lambda: core.suspended(is_suspended=False))
        take(core, 19)
        queue = min(core.deliveries.states)
        assert core.state_of(queue).position > 0
        thread.call(lambda: core.lost(queue))
        with pytest.raises(QueueNotAssigned):
            core.state_of(queue)


def test_commit_of_previous_owner_is_refused(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    with opened(cluster, group, topic) as (core, thread):
        take(core, 20)
        thread.run(core.commit(None))
        queue, state = min(core.deliveries.states.items())
        mine = state.generation
        assert thread.run(core.offsets.commit({queue: Commit(0, mine - 1)})).refused == [queue]
        assert thread.run(core.offsets.committed(queue)) == state.position
        # The next owner queries the committed offset. From then on this member's commits are refused.
        thread.run(core.offsets.committed(queue, mine + 1))
        assert thread.run(core.offsets.commit({queue: Commit(0, mine)})).refused == [queue]


def test_fenced_queue_is_dropped_and_assigned_again(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    with opened(cluster, group, topic) as (core, thread):
        take(core, 20)
        queue, old = min(core.deliveries.states.items())
        # Query the offset like another member that was assigned the queue.
        thread.run(core.offsets.committed(queue, old.generation + 1))
        with pytest.raises(CommitFenced, match="other members hold these queues now"):
            thread.run(core.commit(None))
        eventually(lambda: core.deliveries.states.get(queue) not in (None, old))
        take(core, old.position)  # none of its messages was committed
        thread.run(core.commit(None))
    assert committed(cluster, group, topic) == 20


def test_late_release_keeps_a_queue_that_is_assigned_again(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to the commit of a released queue arrives after the queue was lost and assigned again."""
    responded, finished = threading.Event(), threading.Event()
    reports: list[SyncGroupRequest] = []
    sync = Group.sync

    async def commit_late(*_where: object) -> Committed:
        await asyncio.to_thread(responded.wait, LIMIT_S)
        finished.set()
        return Committed([], {})

    def sync_and_report(members: Group, request: SyncGroupRequest, *options: Any) -> SyncGroupReply:
        reports.extend([request] if request.group == group else [])
        return sync(members, request, *options)

    monkeypatch.setattr(OffsetClient, "commit_best_effort", commit_late)
    monkeypatch.setattr(Group, "sync", sync_and_report)
    topic = cluster.topic(queues=1)
    with opened(cluster, group, topic, auto_commit=True) as (core, thread):
        queue, old = min(
            eventually(lambda: len(core.deliveries.states) == 2 and core.deliveries.states.items())
        )
        thread.call(lambda: core.revoked(queue))
        thread.call(lambda: core.session.membership.fenced(queue))
        eventually(lambda: core.deliveries.states.get(queue) not in (None, old), "the later grant")
        responded.set()
        assert finished.wait(LIMIT_S)
        reports.clear()
        eventually(lambda: len(reports) >= 3)
        assert all(queue in {item.queue for item in report.owned} for report in reports)


def test_queue_without_starting_offset_is_not_committed(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_where: object, **_how: object) -> int:
        return await asyncio.Future()

    monkeypatch.setattr(OffsetClient, "starting", never)
    topic = cluster.topic(queues=1)
    with PullConsumer(cluster.address, group, config=ConsumerConfig(**QUICK)) as consumer:
        consumer.subscribe(topic)
        [queue, _other] = eventually(lambda: len(consumer.assignment()) == 2 and consumer.assignment())
        consumer.commit()
        assert consumer.lag() == {}
        assert consumer.committed(queue) is None


def test_buffer_share_of_queue_has_minimum_size(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[int] = []
    pull = PullSender.pull

    async def recorded(
        puller: PullSender, queue: MessageQueue, offset: int, expression: str, share: int, *more: Any
    ) -> Any:
        shares.append(share)
        return await pull(puller, queue, offset, expression, share, *more)

    monkeypatch.setattr(PullSender, "pull", recorded)
    topic = cluster.topic(queues=1)
    config = ConsumerConfig(prefetch_bytes=1_000)
    with PullConsumer(cluster.address, group, config=config) as consumer:
        consumer.assign(consumer.queues(topic))
        eventually(lambda: shares)
    assert set(shares) == {MIN_SHARE_BYTES}

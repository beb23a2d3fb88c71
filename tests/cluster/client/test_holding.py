"""Assignment and closing: refused members, failed offset queries, many queues, interrupted closes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from actors.wire.codes import ResponseCode
from cluster.client import (
    Admin,
    ConsumerConfig,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PushConfig,
    PushConsumer,
    aio,
)
from cluster.client.consumer.queue_work import CacheLimits
from cluster.client.errors import SubscriptionDiffers, refused
from cluster.client.group.offset_client import OffsetClient
from cluster.client.transport.instance import ClientInstance
from tests.eventually import LIMIT_S, eventually, eventually_async

from .conftest import LONG_LEASE_MS, Cluster
from .test_pull_consumer import fill, poll_numbers
from .test_push_consumer import Seen


def test_refused_member_resumes_after_other_members_leave(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10, tags="a")
    config = ConsumerConfig(sync_interval_ms=200, lease_ms=LONG_LEASE_MS)
    first = PullConsumer(cluster.address, group, config=config)
    second = PullConsumer(cluster.address, group, config=config)
    with second:
        first.subscribe(topic, "b")
        eventually(lambda: len(first.assignment()) == 2)
        second.subscribe(topic, "a")
        with pytest.raises(SubscriptionDiffers):
            second.poll(timeout_ms=60_000)
        first.close()

        def resumes() -> bool:
            try:
                return bool(numbers.extend(int(each.body) for each in second.poll(timeout_ms=50)) or numbers)
            except SubscriptionDiffers:
                return False

        numbers: list[int] = []
        eventually(resumes)
        numbers += poll_numbers(second, 10 - len(numbers))
    assert sorted(numbers) == list(range(10))


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_refused_query_of_starting_offset_is_retried(
    cluster: Cluster, group: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, queried, seen = cluster.topic(queues=1), [], Seen()
    fill(cluster, topic, 10)
    committed = OffsetClient.committed

    async def refuse_twice(client: OffsetClient, queue: MessageQueue, generation: int = 0) -> int | None:
        queried.append(queue)
        if queried.count(queue) < 3:
            raise refused(ResponseCode.INVALID_PARAMETER, "not now")
        return await committed(client, queue, generation)

    monkeypatch.setattr(OffsetClient, "committed", refuse_twice)
    if kind == "push":
        with PushConsumer(cluster.address, group, seen) as pushes:
            pushes.subscribe(topic)
            seen.wait_for(10)
    else:
        with PullConsumer(cluster.address, group) as pulls:
            pulls.subscribe(topic)
            assert sorted(poll_numbers(pulls, 10)) == list(range(10))


def test_limits_are_not_recomputed_for_each_of_many_queues(
    cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, computed = cluster.topic(queues=100), []
    limits_of = CacheLimits.of

    def counted(config: PushConfig, queues_of_topic: int) -> CacheLimits:
        computed.append(queues_of_topic)
        return limits_of(config, queues_of_topic)

    monkeypatch.setattr(CacheLimits, "of", counted)
    with PushConsumer(cluster.address, group, Seen()) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(consumer.assignment()) == 200)
    # With a computation for each queue and change, 1,500 queues took 41 s to start and 36 s to release.
    assert len(computed) < 1_000


def test_join_returns_if_unused_consumer_is_closed(cluster: Cluster) -> None:
    consumer = PushConsumer(cluster.address, "unused", print)
    joining = threading.Thread(target=consumer.join, daemon=True)
    joining.start()
    consumer.close()
    joining.join(LIMIT_S)
    assert not joining.is_alive()
    consumer.join()


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_interrupted_close_still_leaves_group(
    cluster: Cluster, group: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, closed = cluster.topic(queues=1), list[ClientInstance]()
    fill(cluster, topic, 4)
    close = ClientInstance.close

    async def close_and_record(instance: ClientInstance) -> None:
        await close(instance)
        closed.append(instance)

    monkeypatch.setattr(ClientInstance, "close", close_and_record)

    async def main() -> None:
        called, committing, stuck = (asyncio.Event() for _ in range(3))

        async def listen(_messages: list[MessageExt]) -> None:
            called.set()
            await stuck.wait()

        async def commit_without_end(_client: OffsetClient, _offsets: object) -> None:
            committing.set()
            await stuck.wait()

        consumer: aio.PushConsumer | aio.PullConsumer
        if kind == "push":
            consumer = aio.PushConsumer(cluster.address, group, listen)
            await consumer.subscribe(topic)
            await called.wait()
        else:
            consumer = aio.PullConsumer(cluster.address, group)
            await consumer.subscribe(topic)
            await consumer.poll(timeout_ms=60_000)
            monkeypatch.setattr(OffsetClient, "commit", commit_without_end)
        closing = asyncio.create_task(consumer.close())
        if kind == "push":
            await eventually_async(lambda: not consumer.assignment())
        else:
            await committing.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert len(closed) == 1

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    with Admin(cluster.address) as admin:
        assert admin.group_members(group) == []

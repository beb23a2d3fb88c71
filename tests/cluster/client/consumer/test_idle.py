"""A consumer that stops polling gives its queues to others, and joins the group again when it polls."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from cluster.client import Admin, MessageQueue, Producer, PullConsumer, PushConsumer, SendStatus, aio
from cluster.client.errors import CommitFenced
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_pull_consumer import committed, fill, make_config, poll_numbers
from tests.eventually import LIMIT_S, NEVER_S, eventually, eventually_async

IDLE_MS = 500


def test_queues_of_a_consumer_that_stops_polling_move_until_it_polls_again(
    cluster: Cluster, group: str
) -> None:
    topic = cluster.topic(queues=2)
    fill(cluster, topic, 40)
    config = make_config(cluster, group, max_poll_interval_ms=IDLE_MS, auto_commit=False)
    busy = make_config(cluster, group, max_poll_interval_ms=int(NEVER_S * 1000))
    with PullConsumer(config=config) as idle, PullConsumer(config=busy) as other:
        idle.subscribe(topic)
        poll_numbers(idle, 40)
        idle.commit()
        fill(cluster, topic, 10)
        poll_numbers(idle, 1)
        eventually(lambda: not idle.assignment(), "the queues of the idle consumer")
        other.subscribe(topic)
        assert sorted(poll_numbers(other, 10)) == list(range(10))
        assert len(other.assignment()) == 4
        with pytest.raises(CommitFenced, match="max_poll_interval_ms 500"):
            idle.commit()
        idle.commit()

        def shares() -> bool:
            idle.poll(timeout_ms=10)
            other.poll(timeout_ms=10)
            return len(idle.assignment()) == len(other.assignment()) == 2

        eventually(shares)
    assert committed(cluster, group, topic) == 50


def test_consumer_that_waits_in_a_poll_keeps_its_queues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    config = make_config(cluster, group, max_poll_interval_ms=IDLE_MS)
    with PullConsumer(config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: consumer.poll(timeout_ms=1) or len(consumer.assignment()) == 2)
        for _ in range(2):
            assert consumer.poll(timeout_ms=2 * IDLE_MS) == []
            assert len(consumer.assignment()) == 2


def test_async_consumer_that_stops_polling_loses_its_queues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    config = make_config(cluster, group, max_poll_interval_ms=IDLE_MS)

    async def story() -> None:
        async with aio.PullConsumer(config=config) as consumer:
            await consumer.subscribe(topic)

            async def polled_until(predicate: Callable[[list[MessageQueue]], bool]) -> bool:
                await consumer.poll(timeout_ms=1)
                return predicate(consumer.assignment())

            await eventually_async(lambda: polled_until(lambda held: len(held) == 2))
            await eventually_async(lambda: not consumer.assignment())
            await eventually_async(lambda: polled_until(lambda held: len(held) == 2))

    asyncio.run(story())


def drop_all(clients: list[Any]) -> None:
    clients.clear()
    gc.collect()


@pytest.mark.parametrize("kind", [PullConsumer, PushConsumer])
def test_dropped_consumer_is_closed_with_a_warning(
    cluster: Cluster, group: str, kind: type[PullConsumer | PushConsumer]
) -> None:
    topic = cluster.topic(queues=1)
    arguments = (print,) if kind is PushConsumer else ()
    consumers = [kind(cluster.address, group, *arguments)]
    consumers[0].subscribe(topic)
    with Admin(cluster.address) as admin:
        eventually(lambda: admin.group_members(group))
        with pytest.warns(ResourceWarning, match="was dropped without close"):
            drop_all(consumers)
        eventually(lambda: not admin.group_members(group))


def test_dropped_producer_stores_what_it_accepted(cluster: Cluster) -> None:
    topic = cluster.topic(queues=1)
    producers = [Producer(cluster.address, "dropped")]
    sends = [producers[0].send_async(topic, b"%d" % number) for number in range(100)]
    with pytest.warns(ResourceWarning, match="producer was dropped without close"):
        drop_all(producers)
    assert {send.result(LIMIT_S).status for send in sends} == {SendStatus.SEND_OK}

"""RayMQ's clients follow the leader of a group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.client import aio
from cluster.client.config import ProducerConfig
from store.message.message_queue import MessageQueue
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies
from tests.eventually import LIMIT_S, eventually_async

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.extended
@pytest.mark.parametrize("is_stopped", [True, False], ids=["connection refused", "code 14"])
@pytest.mark.parametrize("queue", [QUEUE, None], ids=["one queue", "any queue"])
def test_sends_wait_for_the_next_leader(tmp_path: Path, is_stopped: bool, queue: MessageQueue | None) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            first = await group.send(b"creates the topic")
            await eventually_async(group.is_leader_registered)
            limit_ms = int(LIMIT_S * 1000)
            config = ProducerConfig(delivery_timeout_ms=limit_ms, send_timeout_ms=limit_ms)
            async with aio.Producer(group.nameserver, "PG", config=config) as producer:
                await producer.send("T", b"0", queue=queue)
                if is_stopped:
                    await group.stop(first)
                else:
                    group.isolate(first)
                others = [each for each in range(3) if each != first]
                sends = [producer.send("T", b"%d" % number, queue=queue) for number in range(1, 20)]
                await asyncio.gather(*sends)
            second = await group.send(b"last", others)
            sent = {b"%d" % number for number in range(20)}
            stored = {body for queue_id in range(4) for body in await bodies(group, second, queue_id)}
            assert sent <= stored

    run(story)

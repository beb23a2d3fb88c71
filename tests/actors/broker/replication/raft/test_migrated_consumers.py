"""Consumers stay up while their broker becomes a Raft group, and a single broker again."""

from __future__ import annotations

from pathlib import Path

from actors.wire.codes import ResponseCode
from cluster.client import ConsumerConfig, MessageQueue
from cluster.client.aio import PullConsumer
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.test_migration import Migrated
from tests.eventually import eventually_async

QUEUE = MessageQueue("T", "broker-a", 0)


def test_consumers_of_a_migrated_broker_skip_and_repeat_nothing(tmp_path: Path) -> None:
    """One is RayMQ's, the other pulls as RocketMQ's do: its position exists after each migration."""
    received: list[int] = []
    sent: list[int] = []

    async def story() -> None:
        async with Migrated(tmp_path) as group:
            await group.start_single()
            await group.send(b"0", [0])
            config = ConsumerConfig(nameservers=group.nameserver, group="CG")
            async with PullConsumer(config=config) as consumer:
                await consumer.assign([QUEUE])
                await consumer.seek(QUEUE, 0)

                async def reads(*bodies: int) -> None:
                    """Send messages, which the consumer gets, then let it commit."""
                    sent.extend(bodies)
                    for body in bodies:
                        await group.send(b"%d" % body, [0])
                    await eventually_async(lambda: polled())
                    await consumer.commit()

                async def polled() -> bool:
                    received.extend(int(each.body) for each in await consumer.poll(timeout_ms=10))
                    return len(received) >= len(sent)

                async def is_kept() -> None:
                    pulled = await group.peers[0].pull("T", len(sent))
                    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (
                        ResponseCode.PULL_NOT_FOUND,
                        str(len(sent)),
                    )

                sent.append(0)
                await reads(1, 2)
                await group.stop(0)
                await group.start_group()
                await is_kept()
                await reads(3, 4)
                await group.leave()
                await group.start_single()
                await is_kept()
                await reads(5, 6)

    run(story)
    assert received == sent

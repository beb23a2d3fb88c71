"""Replicas of a Raft group whose stores are replaced by older copies, while consumers are up."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from cluster.client import ClientError, ConsumerConfig, MessageQueue
from cluster.client.aio import PullConsumer
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import eventually_async

QUEUE = MessageQueue("T", "broker-a", 0)
ALL = (0, 1, 2)


async def begin(consumer: PullConsumer) -> None:
    """Read the queue from its first message on, as soon as its topic is registered."""

    async def is_assigned() -> bool:
        try:
            await consumer.assign([QUEUE])
        except ClientError:
            return False
        return True

    await eventually_async(is_assigned)
    await consumer.seek(QUEUE, 0)


class Copied(Group):
    """A group whose stores are copied and restored."""

    async def start_all(self, replicas: Iterable[int]) -> None:
        for replica in replicas:
            await self.start(replica)

    async def stop_all(self, replicas: Iterable[int]) -> None:
        for replica in replicas:
            await self.stop(replica)

    async def copy(self, replicas: Iterable[int]) -> None:
        await self.stop_all(replicas)
        for replica in replicas:
            shutil.copytree(self.settings[replica].store_root, self._root / f"copy-{replica}")
        await self.start_all(replicas)

    def restore(self, replicas: Iterable[int]) -> None:
        for replica in replicas:
            shutil.rmtree(self.settings[replica].store_root)
            shutil.move(self._root / f"copy-{replica}", self.settings[replica].store_root)


@pytest.mark.parametrize("restored", [ALL, (1,)])
def test_consumer_of_a_restored_group_skips_nothing(tmp_path: Path, restored: tuple[int, ...]) -> None:
    """A restored group gets more messages than were lost, in as many terms; a single replica loses none."""
    received: list[int] = []

    async def story() -> None:
        async with Copied(tmp_path) as group:
            config = ConsumerConfig(nameservers=group.nameserver, group="CG", route_refresh_ms=100)

            async def send(numbers: Iterable[int]) -> None:
                for number in numbers:
                    await group.send(b"%d" % number, ALL)

            await send(range(4))
            await group.copy(restored)
            async with PullConsumer(config=config) as consumer:
                await begin(consumer)

                async def has(numbers: Iterable[int]) -> bool:
                    received.extend(int(each.body) for each in await consumer.poll(timeout_ms=10))
                    return set(numbers) <= set(received)

                await send(range(4, 8))
                await eventually_async(lambda: has(range(8)))
                await group.stop_all(restored)
                group.restore(restored)
                await group.start_all(restored)
                await send(range(8, 18))
                await group.stop_all(ALL)
                await group.start_all(ALL)  # another term
                await send([18])
                await eventually_async(lambda: has(range(19)))

    run(story)
    assert {*received} == {*range(19)}
    # In a term before that of its position, a leader may be a former one, and lets the consumer read on:
    # what it reads then comes again when a later leader sees that the log went back.
    assert restored == ALL or sorted(received) == [*range(19)]


def test_changes_of_the_leader_move_no_consumer(tmp_path: Path) -> None:
    received: list[int] = []

    async def story() -> None:
        async with Group(tmp_path) as group:
            config = ConsumerConfig(nameservers=group.nameserver, group="CG", route_refresh_ms=100)
            await group.send(b"0", ALL)
            async with PullConsumer(config=config) as consumer:
                await begin(consumer)

                async def has(count: int) -> bool:
                    received.extend(int(each.body) for each in await consumer.poll(timeout_ms=10))
                    return len(received) >= count

                for number in range(1, 5):
                    leader = await group.send(b"%d" % number, ALL)
                    await eventually_async(lambda end=number + 1: has(end))  # type: ignore[misc]
                    await group.stop(leader)
                    await group.start(leader)

    run(story)
    assert received == [*range(5)]

"""A consumer reads from a slave while the master is gone, and from the master when it is back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.broker.core.role import Role
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from cluster.client import ConsumerConfig, MessageQueue, aio
from store.common.clock import SystemClock
from tests.actors.broker.brokers import Peer, run, settings_of
from tests.eventually import eventually_async

QUEUE = MessageQueue("T", "broker-a", 0)


@asynccontextmanager
async def nameserver() -> AsyncIterator[str]:
    service = build_nameserver(NameserverSettings.model_validate({"listen_port": 0}), SystemClock())
    await service.start()
    try:
        yield service.address
    finally:
        await service.stop()


class Replica:
    """A broker that a test stops and starts; all replicas have the same messages."""

    def __init__(self, root: Path, nameserver: str, port: int = 0, **settings: Any) -> None:
        own = settings_of(root, nameservers=nameserver, slave_read_enable=True, **settings)
        self.service = BrokerService(own, SystemClock())
        self.peer = Peer(self.service)

    async def fill(self, count: int) -> None:
        """Send the messages 0 to `count` - 1 to queue 0; a slave becomes master for this."""
        graph = self.service.graph
        role = graph.role.role
        await graph.role.become(Role.MASTER, 1)
        for number in range(count):
            assert (await self.peer.send("T", b"%d" % number)).code == 0
        await graph.role.become(role, 1)

    async def stop(self) -> None:
        await self.peer.client.close()
        await self.service.stop()


async def take(consumer: aio.PullConsumer, count: int) -> list[bytes]:
    """Poll until `count` messages arrived."""
    bodies: list[bytes] = []

    async def is_complete() -> bool:
        bodies.extend(bytes(each.body) for each in await consumer.poll(timeout_ms=100))
        return len(bodies) >= count

    await eventually_async(is_complete)
    return bodies


def test_consumer_reads_from_the_slave_without_a_master_and_returns(tmp_path: Path) -> None:
    async def story() -> None:
        async with nameserver() as address:
            slave = Replica(tmp_path / "s", address, role="slave")
            await slave.service.start()
            await slave.fill(4)
            master = Replica(tmp_path / "m", address)
            await master.service.start()
            await master.fill(2)
            config = ConsumerConfig(nameservers=address, group="CG", route_refresh_ms=100, long_poll_ms=100)
            async with aio.PullConsumer(config=config) as consumer:
                await consumer.assign([QUEUE])
                assert await take(consumer, 2) == [b"0", b"1"]
                assert slave.service.graph.loop.stats.got_total.messages == 0
                await master.stop()
                assert await take(consumer, 2) == [b"2", b"3"]
                assert await consumer.end_offset(QUEUE) == 4
                await consumer.pause(QUEUE)  # a master that ends before its offset would reset it
                again = Replica(tmp_path / "m", address)
                await again.service.start()
                for number in range(2, 5):
                    await again.peer.send("T", b"%d" % number)
                await consumer.resume(QUEUE)
                assert await take(consumer, 1) == [b"4"]
                assert slave.service.graph.loop.stats.got_total.messages == 2
                await again.stop()
            await slave.stop()

    run(story)


def test_consumer_follows_the_suggestion_of_the_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with nameserver() as address:
            slave = Replica(tmp_path / "s", address, role="slave")
            await slave.service.start()
            await slave.fill(3)
            master = Replica(tmp_path / "m", address, access_message_in_memory_max_ratio=0)
            await master.service.start()
            await master.fill(3)
            config = ConsumerConfig(nameservers=address, group="CG", fetch_bytes=1)
            async with aio.PullConsumer(config=config) as consumer:
                await consumer.assign([QUEUE])
                assert await take(consumer, 3) == [b"0", b"1", b"2"]
            got = [each.service.graph.loop.stats.got_total.messages for each in (master, slave)]
            assert got == [2, 1]  # the slave has its memory's full share and sends the consumer back
            await master.stop()
            await slave.stop()

    run(story)

"""Requests to a silent broker fail as soon as the route has another master, and not before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from actors.wire.bodies.routes import BrokerData, QueueData
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Closed
from cluster.client.config import ClientConfig
from cluster.client.errors import BrokerUnreachable
from cluster.client.producer.direct import DirectConnections
from cluster.client.transport.instance import ClientInstance
from store.common.clock import NS_PER_MS, SystemClock
from tests.actors.transport.clients.test_nameservers import FakeNameserver
from tests.eventually import LIMIT_S, eventually_async

TIMEOUT_MS = int(LIMIT_S * 1000)


class LaterClock(SystemClock):
    """A clock that is moved forward."""

    later_ms = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.later_ms * NS_PER_MS


@asynccontextmanager
async def silent_broker() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Accept connections, and respond to nothing. The event is set when a request has arrived."""
    arrived = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            arrived.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", arrived


def at(addresses: dict[int, str]) -> tuple[QueueData, BrokerData]:
    return QueueData("a", 4, 4, 6), BrokerData("C", "a", addresses)


@pytest.mark.parametrize("is_direct", [False, True], ids=["event loop", "thread"])
def test_send_to_a_silent_former_master_fails(is_direct: bool) -> None:
    async def story() -> None:
        clock = LaterClock()
        async with silent_broker() as (address, arrived):
            nameserver = FakeNameserver(at({0: address}))
            await nameserver.server.start("127.0.0.1", 0)
            config = ClientConfig(f"127.0.0.1:{nameserver.server.port}")
            instance, direct = ClientInstance(config, clock=clock), DirectConnections(TIMEOUT_MS)
            moved = instance.moved_masters
            moved.watch(direct if is_direct else instance.remoting)
            await instance.routes.get("T")
            errors: list[Exception] = []
            call = send_directly(direct, address, errors) if is_direct else send(instance, address, errors)
            await arrived.wait()

            await moved.check()  # too early
            clock.later_ms = 60_000
            await moved.check()  # it is the master
            nameserver.brokers = [at({1: address})]
            await moved.check()  # no master is known
            assert nameserver.requests == 3
            assert not errors
            nameserver.brokers = [at({0: "127.0.0.1:1", 1: address})]
            await moved.check()
            await eventually_async(lambda: errors)

            await asyncio.to_thread(call.join) if isinstance(call, threading.Thread) else await call
            assert isinstance(errors[0], Closed if is_direct else BrokerUnreachable)
            await instance.close()
            await nameserver.server.stop()

    asyncio.run(story())


def send(instance: ClientInstance, address: str, errors: list[Exception]) -> asyncio.Task[None]:
    async def wait() -> None:
        try:
            await instance.request(address, RemotingCommand(RequestCode.GET_MAX_OFFSET), 1 << 40)
        except BrokerUnreachable as error:
            errors.append(error)

    return asyncio.ensure_future(wait())


def send_directly(connections: DirectConnections, address: str, errors: list[Exception]) -> threading.Thread:
    def wait() -> None:
        try:
            connections.exchange(address, RemotingCommand(RequestCode.GET_MAX_OFFSET), TIMEOUT_MS)
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_routes_of_an_unreachable_broker_are_refreshed() -> None:
    async def story() -> None:
        nameserver = FakeNameserver(at({0: "127.0.0.1:1"}))
        await nameserver.server.start("127.0.0.1", 0)
        instance = ClientInstance(ClientConfig(f"127.0.0.1:{nameserver.server.port}"))
        await instance.routes.get("T")
        nameserver.brokers = [at({0: "127.0.0.1:2"})]
        with pytest.raises(BrokerUnreachable):
            await instance.request("127.0.0.1:1", RemotingCommand(RequestCode.GET_MAX_OFFSET))
        await eventually_async(lambda: instance.master_of("T", "a") == "127.0.0.1:2")
        await instance.close()
        await nameserver.server.stop()

    asyncio.run(story())

"""The ports of a process share its descriptors: idle peers are closed for new ones, the oldest first."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import structlog

from actors.ports import NEVER_ASKED_NS, OTHERS, PAUSE_NS, RESERVED, Ports, open_descriptors
from actors.transport.limits import RemotingLimits
from actors.transport.request import RequestContext
from actors.wire.command import RemotingCommand
from store.common.clock import NS_PER_MS, Clock, SystemClock
from tests.actors.transport.remoting_peers import ECHO, RawPeer, echo, raw_peer, request, run, serving
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


async def asks(peer: RawPeer) -> RemotingCommand:
    peer.send(request(ECHO, 1))
    return await peer.read()


def test_peer_that_never_asked_is_closed_first_then_the_one_idle_for_longest(clock: ClockAtRest) -> None:
    async def story() -> None:
        async with (
            serving(clock=clock, limits=RemotingLimits(max_connections=3)) as server,
            raw_peer(server) as used,
            raw_peer(server) as older,
        ):
            await asks(used)
            await older.deliver_bytes(b"\x00")
            clock.advance(1)
            async with raw_peer(server) as newer:
                await newer.deliver_bytes(b"\x00")
                async with raw_peer(server) as first:
                    assert await older.is_closed()
                    await asks(first)
                    clock.advance(1)
                    async with raw_peer(server) as second:
                        assert await newer.is_closed()
                        await asks(second)
                        assert (await asks(used)).body == (await asks(first)).body
                        server.hub.sweep()  # notes which peers have asked
                        clock.advance(30_000)
                        await asks(first)
                        await asks(second)
                        server.hub.sweep()
                        clock.advance(30_000)
                        async with raw_peer(server) as third:
                            await asks(third)
                            assert await used.is_closed()  # idle for 60 s, the others for 30 s

    with structlog.testing.capture_logs():
        run(story())


def test_new_peer_is_refused_while_all_others_are_served_or_have_just_asked(clock: ClockAtRest) -> None:
    held: list[RequestContext] = []
    hold = ECHO + 1

    def keep(context: RequestContext) -> None:
        held.append(context)

    async def story() -> None:
        limits = RemotingLimits(max_connections=2, idle_ms=10_000_000)
        handlers = {ECHO: echo, hold: keep}
        async with (
            serving(handlers, clock=clock, limits=limits) as server,  # type: ignore[arg-type]
            raw_peer(server) as waiting,
            raw_peer(server) as used,
        ):
            await asks(used)
            waiting.send(request(hold, 1))
            await eventually_async(lambda: bool(held))
            server.hub.sweep()
            async with raw_peer(server) as refused:
                assert await refused.is_closed()
            clock.advance(60_000)
            async with raw_peer(server) as new:
                await asks(new)
                assert await used.is_closed()
            held[0].reply(RemotingCommand.response())
            await waiting.read()  # it was idle for longer, but its request was held

    with structlog.testing.capture_logs() as logs:
        run(story())
    [refusal] = [each for each in logs if each["event"] == "connections_refused"]
    assert refusal["reason"] == "over the limit of 2 connections, and no peer is idle"


class Peer(asyncio.Protocol):
    """A connection that is idle since its time, or in use."""

    def __init__(self, idle_ns: int | None) -> None:
        self._idle_ns = idle_ns
        self.is_open = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False

    def idle_ns(self, now_ns: int) -> int | None:
        return self._idle_ns

    def give_way(self) -> None:
        self._transport.abort()


class OnePort:
    """A port whose connections are all idle for the same time, or None: in use."""

    def __init__(self, idle_ns: int | None) -> None:
        self._idle_ns = idle_ns
        self.accepted: list[Peer] = []
        self.number = 0

    @property
    def open(self) -> list[Peer]:
        return [each for each in self.accepted if each.is_open]

    def make(self) -> Peer:
        self.accepted.append(Peer(self._idle_ns))
        return self.accepted[-1]

    async def connect(self) -> asyncio.StreamWriter:
        """Return an accepted connection."""
        before = len(self.accepted)
        _, writer = await asyncio.open_connection("127.0.0.1", self.number)
        await eventually_async(lambda: len(self.accepted) > before and self.accepted[-1].is_open)
        return writer

    async def is_refused(self) -> bool:
        before = len(self.accepted)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        await eventually_async(
            lambda: reader.at_eof() or (len(self.accepted) > before and self.accepted[-1].is_open)
        )
        for _ in range(3):
            await asyncio.sleep(0)  # the turns in which the port notes that it is open
        writer.close()
        return len(self.accepted) == before


@asynccontextmanager
async def listening(*opened: OnePort, spare: int, clock: Clock) -> AsyncIterator[list[int]]:
    """Listen on ports; `spare` descriptors are free. Yields a list, to which a test adds what files need."""
    files: list[int] = []
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reserved = RESERVED * sum(each.number == -1 for each in opened)
    begin = 0

    def missing_files() -> int:
        return sum(files) + limit - OTHERS - reserved - begin - spare

    ports = [Ports(clock, missing_files), *(Ports(clock) for _ in opened[1:])]  # of several services
    found = []
    for service, port in zip(ports, opened, strict=True):
        is_reserved = port.number == -1
        found.append(
            await service.listen(
                "127.0.0.1", 0, port.make, lambda port=port: port.open, 1_000, is_reserved=is_reserved
            )
        )
        port.number = found[-1].number
    await asyncio.sleep(0)
    begin = open_descriptors() + 1  # the client's end of the first connection
    try:
        yield files
    finally:
        for each in found:
            each.close()


def story_of(story: Callable[[ClockAtRest], object]) -> None:
    with structlog.testing.capture_logs():
        run(story(ClockAtRest()))  # type: ignore[arg-type]


def test_idle_peers_of_any_port_give_their_descriptors_to_new_ones() -> None:
    async def story(clock: ClockAtRest) -> None:
        idle, used = OnePort(NEVER_ASKED_NS), OnePort(None)
        async with listening(idle, used, spare=20, clock=clock):
            writers = [await idle.connect() for _ in range(60)]
            assert 5 < len(idle.open) <= 22  # each connection has two ends in this process
            writers += [await used.connect() for _ in range(5)]
            assert len(used.open) == 5
            for each in writers:
                each.close()

    story_of(story)


def test_ports_refuse_peers_instead_of_taking_the_descriptors_of_files() -> None:
    async def story(clock: ClockAtRest) -> None:
        used, reserved = OnePort(None), OnePort(None)
        reserved.number = -1
        async with listening(used, reserved, spare=20, clock=clock) as files:
            writer = await used.connect()
            files.append(2_000)
            while not await used.is_refused():
                pass  # within what was counted as free before
            (await reserved.connect()).close()  # `/healthz` is reached also then
            files.clear()
            assert await used.is_refused()  # it searches again after a pause
            clock.advance(PAUSE_NS // NS_PER_MS)
            (await used.connect()).close()
            writer.close()

    story_of(story)


def test_closed_port_closes_connections_that_are_being_opened() -> None:
    async def story() -> None:
        ports = Ports(SystemClock())
        port = await ports.listen("127.0.0.1", 0, asyncio.Protocol, tuple, 10)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        port.close()
        port.close()
        writer.close()
        assert await reader.read() == b""

    run(story())

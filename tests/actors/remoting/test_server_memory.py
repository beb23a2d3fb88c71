"""The memory of incomplete long frames of all connections, with a lowered limit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
import structlog
from remoting_peers import ECHO, RawPeer, raw_peer, request, run, serving

from actors.remoting.command import encode_command
from actors.remoting.limits import RemotingLimits
from actors.remoting.server import RemotingServer
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

LIMIT = 4 * 1024 * 1024
LIMITS = RemotingLimits(max_assembly_bytes=LIMIT)
LONG = encode_command(request(ECHO, 7, bytes(1_000_000)))


async def connect(server: RemotingServer, stack: AsyncExitStack, count: int) -> list[RawPeer]:
    return [await stack.enter_async_context(raw_peer(server)) for _ in range(count)]


async def sizes_of(peer: RawPeer) -> list[int]:
    """Return the sizes of four responses."""
    return [len((await peer.read()).body) for _ in range(4)]


@pytest.mark.parametrize("sent_bytes", [16, 100_000, len(LONG) - 1])
def test_peers_with_incomplete_frames_give_way_to_others(sent_bytes: int) -> None:
    async def story() -> None:
        async with serving(limits=LIMITS) as server, AsyncExitStack() as stack:
            for peer in await connect(server, stack, 20):
                peer.write(LONG[:sent_bytes])
            await eventually_async(lambda: server.hub.account.waiting > 0)
            [good] = await connect(server, stack, 1)
            for size in (10, 100_000, 900_000):
                good.send(request(ECHO, 3, bytes(size)))
                assert len((await good.read()).body) == size
                assert server.hub.account.used_bytes <= LIMIT
        await eventually_async(lambda: server.hub.account.used_bytes == 0)
        assert server.hub.memory.assembly_bytes == 0

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert any("others need its place" in str(line.get("reason")) for line in logs)


def test_long_frames_wait_for_their_place_and_all_are_handled() -> None:
    async def story() -> None:
        async with serving(limits=LIMITS) as server, AsyncExitStack() as stack:
            peers = await connect(server, stack, 16)
            for peer in peers:
                for _ in range(3):
                    peer.write(LONG)
                peer.send(request(ECHO, 8, b"last"))
            for sizes in await asyncio.gather(*map(sizes_of, peers)):
                assert sorted(sizes) == [4, 1_000_000, 1_000_000, 1_000_000]
            assert LIMIT // 2 < server.hub.account.peak_bytes <= LIMIT

    run(story())


def test_incomplete_frames_of_equal_size_end_while_others_wait(clock: ClockAtRest) -> None:
    async def story() -> None:
        async with serving(limits=LIMITS, clock=clock) as server, AsyncExitStack() as stack:
            for peer in await connect(server, stack, 3):
                peer.write(LONG[:-1])
            await eventually_async(lambda: server.hub.account.taken_bytes > LIMIT // 2)
            [good] = await connect(server, stack, 1)
            good.write(LONG)
            await eventually_async(lambda: server.hub.account.waiting == 1)
            clock.advance(LIMITS.crowded_ms)
            server.hub.sweep()
            assert len((await good.read()).body) == 1_000_000

    run(story())


def test_frame_that_waits_is_dropped_with_its_connection() -> None:
    async def story() -> None:
        async with serving(limits=LIMITS) as server, AsyncExitStack() as stack:
            for peer in await connect(server, stack, 4):
                peer.write(LONG[:500_000])
            await eventually_async(lambda: server.hub.account.waiting == 1)
            for connection in tuple(server.connections):
                connection.abort("test")
            assert (server.hub.account.waiting, server.hub.account.used_bytes) == (0, 0)

    run(story())

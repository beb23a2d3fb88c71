"""Limits of a server on all peers together: time of a turn, collected responses and unread bytes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
import structlog

from actors.transport.limits import SHED_RATIO, RemotingLimits
from actors.transport.request import Cost, RequestContext
from actors.transport.server import RemotingServer
from actors.wire.command import RemotingCommand
from tests.actors.transport.remoting_peers import (
    ECHO,
    RawPeer,
    echo,
    is_unread_dropped,
    raw_peer,
    request,
    run,
    serving,
)
from tests.eventually import eventually_async

KIB = 1024
COSTLY, BIG, SMALL = 1, 2, 3
EITHER_COST = pytest.mark.parametrize("cost", [Cost.SEND, Cost.PULL])


async def peers_of(server: RemotingServer, stack: AsyncExitStack, count: int) -> list[RawPeer]:
    """Connect `count` peers and wait until the server has accepted them."""
    peers = [await stack.enter_async_context(raw_peer(server)) for _ in range(count)]
    await eventually_async(lambda: len(server.connections) >= count)
    return peers


def stop_reading(peer: RawPeer) -> None:
    """Make the peer stop reading."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]


@EITHER_COST
def test_requests_of_all_peers_share_a_turn_round_robin(clock, cost: Cost) -> None:
    """Each request takes a fifth of a turn; the budget is shared by all peers."""
    turns: list[list[tuple[int, int]]] = [[]]

    def costly(context: RequestContext) -> RemotingCommand:
        clock.advance(1)
        turns[-1].append((context.command.ext["peer"], context.command.opaque))
        return RemotingCommand.response()

    async def story() -> None:
        limits = RemotingLimits(turn_budget_us=5_000)
        async with (
            serving(
                {COSTLY: costly},
                clock=clock,
                limits=limits,
                tick=lambda: turns.append([]),
                costs={COSTLY: cost},
            ) as server,
            AsyncExitStack() as stack,
        ):
            peers = await peers_of(server, stack, 6)
            for number, peer in enumerate(peers):
                await peer.deliver(*(request(COSTLY, opaque, peer=str(number)) for opaque in range(40)))
            for peer in peers:
                assert [(await peer.read()).opaque for _ in range(40)] == list(range(40))

    run(story())
    served = [turn for turn in turns if turn]
    order = [entry for turn in served for entry in turn]
    for number in "012345":
        assert [opaque for peer, opaque in order if peer == number] == list(range(40))
    # The clock is checked after four requests of a peer: eight in the budget, four in the share of each
    # queue.
    assert max(len(turn) for turn in served) <= 16
    peers_of_turns = [{peer for peer, _ in turn} for turn in served]
    waits = [peers_of_turns[at + 1 : at + 7] for at in range(12)]
    assert all(set().union(*wait) == set("012345") for wait in waits), peers_of_turns


def test_timers_and_new_connections_are_served_between_turns(clock) -> None:
    done: list[int] = []
    at: dict[str, int] = {}

    def costly(context: RequestContext) -> RemotingCommand:
        clock.advance(5)
        done.append(context.command.opaque)
        if len(done) == 1:
            asyncio.get_running_loop().call_later(0, lambda: at.setdefault("timer", len(done)))
        return RemotingCommand.response()

    def small(context: RequestContext) -> RemotingCommand:
        at.setdefault("new connection", len(done))
        return RemotingCommand.response()

    async def story() -> None:
        limits = RemotingLimits(turn_budget_us=5_000)
        async with (
            serving({COSTLY: costly, SMALL: small}, clock=clock, limits=limits) as server,
            AsyncExitStack() as stack,
        ):
            peers = await peers_of(server, stack, 20)
            for peer in peers:
                peer.send(*(request(COSTLY, number) for number in range(100)))
            await eventually_async(lambda: done)
            new_peer = await stack.enter_async_context(raw_peer(server))
            await new_peer.deliver(request(SMALL, 7))
            assert (await new_peer.read()).opaque == 7
            for peer in peers:
                for _ in range(100):
                    await peer.read()

    run(story())
    assert len(done) == 2_000
    assert at["timer"] <= 30  # of 2,000; without a common budget the timer would run after all of them
    assert at["new connection"] <= 400


@EITHER_COST
def test_responses_are_written_before_the_output_budget_is_exceeded(cost: Cost) -> None:
    collected: list[int] = []

    def big(context: RequestContext) -> RemotingCommand:
        collected.append(context.connection.hub.scheduler.collected_bytes)
        return RemotingCommand.response(parts=[memoryview(bytes(128 * KIB))])

    async def story() -> None:
        limits = RemotingLimits(turn_output_bytes=256 * KIB)
        async with serving({BIG: big}, limits=limits, costs={BIG: cost}) as server, AsyncExitStack() as stack:
            peers = await peers_of(server, stack, 10)
            for peer in peers:
                peer.send(*(request(BIG, number) for number in range(20)))
            for peer in peers:
                assert [(await peer.read()).opaque for _ in range(20)] == list(range(20))
            assert server.hub.scheduler.collected_bytes == 0

    run(story())
    assert len(collected) == 200
    assert max(collected) < (256 + 4 * 130) * KIB


@EITHER_COST
def test_time_of_the_tick_does_not_count_in_the_turn_budget(clock, cost: Cost) -> None:
    """The tick takes longer than the turn budget; each turn still serves as many requests as without it."""
    turns: list[int] = [0]

    def costly(context: RequestContext) -> RemotingCommand:
        clock.advance(1)
        turns[-1] += 1
        return RemotingCommand.response()

    async def story() -> None:
        def tick() -> None:
            server.request_tick()  # as a broker does that has more to dispatch
            clock.advance(50)
            turns.append(0)

        limits = RemotingLimits(turn_budget_us=20_000)
        async with (
            serving({COSTLY: costly}, clock=clock, limits=limits, tick=tick, costs={COSTLY: cost}) as server,
            AsyncExitStack() as stack,
        ):
            peers = await peers_of(server, stack, 3)
            for peer in peers:
                await peer.deliver(*(request(COSTLY, number) for number in range(100)))
            for peer in peers:
                for _ in range(100):
                    await peer.read()

    run(story())
    assert max(turns) <= 24  # connections that continue reading have a share of four
    assert sum(turn >= 20 for turn in turns) >= 10


def test_responses_to_held_requests_respect_the_output_budget() -> None:
    """Held requests that one event resumes, like long-polling pulls."""
    held: list[RequestContext] = []
    collected: list[int] = []

    def response(context: RequestContext) -> None:
        connection = context.connection
        if connection.over_high_water:
            connection.when_drained(lambda _: response(context))
            return
        collected.append(connection.hub.scheduler.collected_bytes)
        context.reply(RemotingCommand.response(parts=[memoryview(bytes(128 * KIB))]))

    async def story() -> None:
        limits = RemotingLimits(turn_output_bytes=256 * KIB)
        async with serving({1: held.append}, limits=limits) as server, AsyncExitStack() as stack:
            peers = await peers_of(server, stack, 30)
            for peer in peers:
                peer.send(request(1, 1), request(1, 2))
            await eventually_async(lambda: len(held) == 60)
            for context in held:
                response(context)
            for peer in peers:
                assert [(await peer.read()).opaque for _ in range(2)] == [1, 2]

    run(story())
    assert len(collected) == 60
    assert max(collected) <= 256 * KIB


def test_drained_callbacks_of_several_peers_run_round_robin(clock) -> None:
    order: list[str] = []

    def later(context: RequestContext) -> None:
        name = context.command.body.decode()

        def drained(_: object) -> None:
            clock.advance(5)
            order.append(name)
            context.reply(RemotingCommand.response())

        context.connection.when_drained(drained)

    async def story() -> None:
        limits = RemotingLimits(turn_budget_us=5_000)
        async with serving({1: later}, clock=clock, limits=limits) as server, AsyncExitStack() as stack:
            peers = await peers_of(server, stack, 3)
            for name, peer in zip("abc", peers, strict=True):
                await peer.deliver(*(request(1, number, name.encode()) for number in range(4)))
            for peer in peers:
                assert [(await peer.read()).opaque for _ in range(4)] == list(range(4))

    run(story())
    assert sorted(order) == sorted("aaaabbbbcccc")
    assert order != sorted(order)  # the first peer was not served completely before the others


def test_peers_with_most_unread_bytes_are_closed_over_the_total_limit() -> None:
    size, limit = 256 * KIB, 8 << 20
    bound = SHED_RATIO * limit + (2 << 20) + 5 * size
    most: list[int] = []

    def big(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(parts=[memoryview(bytes(size))])

    async def story() -> None:
        limits = RemotingLimits(high_water_bytes=1 << 20, max_unread_bytes=limit, turn_output_bytes=2 << 20)
        async with serving({BIG: big, ECHO: echo}, limits=limits) as server, AsyncExitStack() as stack:
            hub = server.hub
            good = (await peers_of(server, stack, 1))[0]
            stalled = await peers_of(server, stack, 100)
            for peer in stalled:
                stop_reading(peer)
                # More than the kernel buffers on both sides (`SOCKET_BUFFER_BYTES`), in one write.
                peer.send(*(request(BIG, number) for number in range(60)))

            async def some_are_closed() -> bool:
                """Record the unread bytes after one more turn, in which the other peer is served."""
                number = len(most)
                good.send(request(ECHO, number))
                assert (await good.read()).opaque == number
                most.append(sum(each.unread_bytes for each in server.connections))
                assert hub.unread_bytes == most[-1] <= bound
                return len(server.connections) < 101

            await eventually_async(some_are_closed)
            for _ in range(100):
                await some_are_closed()
            assert len(server.connections) > 10  # no more are closed than necessary

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert max(most) > limit
    reasons = [line["reason"] for line in logs if line["event"] == "connection_closed"]
    assert reasons
    assert all("exceeds max_unread_bytes 8,388,608" in reason for reason in reasons)


def test_closed_peer_that_reads_nothing_is_dropped_after_a_minute(clock) -> None:
    def big(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(parts=[memoryview(bytes(128 * KIB))])

    async def story() -> None:
        limits = RemotingLimits(unread_ms=60_000, max_connections=1)
        async with serving({BIG: big}, clock=clock, limits=limits) as server, raw_peer(server) as peer:
            hub = server.hub
            await eventually_async(lambda: server.connections)
            stop_reading(peer)
            peer.send(*(request(BIG, number) for number in range(30)))  # more than the kernel buffers
            await eventually_async(lambda: hub.unread_bytes)
            peer.write(b"GET / HTTP/1.1\r\n\r\n")
            await eventually_async(lambda: not server.connections)
            assert hub.unread_bytes > 0
            async with raw_peer(server) as second:
                assert await second.is_closed()  # the first still counts
            clock.advance(59_000)
            hub.sweep()
            assert hub.unread_bytes > 0
            await eventually_async(lambda: is_unread_dropped(server, clock))
            assert not hub.leaving

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert any("unread for 60 s" in line.get("reason", "") for line in logs)

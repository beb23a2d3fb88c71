"""Limits of a server: connections, idle time, time of a turn, and unread responses."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import structlog

from actors.transport.hub import Hub
from actors.transport.limits import RemotingLimits
from actors.transport.request import RequestContext
from actors.wire.command import RemotingCommand, encode_command
from tests.actors.transport.remoting_peers import (
    ECHO,
    echo,
    is_unread_dropped,
    raw_peer,
    request,
    run,
    serving,
)
from tests.eventually import eventually_async


def test_idle_connections_and_incomplete_frames_are_closed_at_the_limit(clock) -> None:
    async def story() -> None:
        async with (
            serving(clock=clock, limits=RemotingLimits(idle_ms=120_000)) as server,
            raw_peer(server) as idle,
            raw_peer(server) as slow_loris,
            raw_peer(server) as good,
        ):
            whole = encode_command(request(ECHO, 1))
            for peer in (idle, good):
                peer.send(request(ECHO, 1))
                await peer.read()
            await slow_loris.deliver_bytes(whole[:5])
            good.send(request(ECHO, 2))
            await good.read()
            server.hub.sweep()
            for byte in whole[5:10]:
                clock.advance(30_000)
                before = server.connections
                slow_loris.write(bytes([byte]))
                good.send(request(ECHO, 2))
                await good.read()
                server.hub.sweep()
                assert len(before) >= len(server.connections)
            assert len(server.connections) == 1
            assert await idle.is_closed()
            assert await slow_loris.is_closed()

    with structlog.testing.capture_logs() as logs:
        run(story())
    reasons = sorted(line["reason"] for line in logs if line["event"] == "connection_closed")
    assert reasons == ["idle for 120 s", "one frame is incomplete after 120 s"]


def test_sweeps_continue_after_a_failed_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = 0

    def sweep(_: Hub) -> None:
        nonlocal sweeps
        sweeps += 1
        if sweeps == 2:  # the first runs in `start`
            raise ZeroDivisionError

    monkeypatch.setattr(Hub, "sweep", sweep)

    async def story() -> None:
        async with serving(limits=RemotingLimits(idle_ms=12)):
            await eventually_async(lambda: sweeps > 2)

    run(story())


def test_no_more_responses_are_produced_for_a_peer_that_does_not_read() -> None:
    size = 256 * 1024
    produced: list[int] = []

    def big(context: RequestContext) -> RemotingCommand:
        produced.append(context.command.opaque)
        return RemotingCommand.response(parts=[memoryview(bytes(size))])

    async def story() -> None:
        limits = RemotingLimits(high_water_bytes=1024 * 1024)
        async with (
            serving({1: big, ECHO + 1: echo}, limits=limits) as server,
            raw_peer(server) as peer,
            raw_peer(server) as other,
        ):
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(*(request(1, number) for number in range(200)))
            await eventually_async(lambda: server.hub.unread_bytes > limits.high_water_bytes)
            for number in range(20):  # turns in which more responses could be produced
                other.send(request(ECHO + 1, number))
                assert (await other.read()).opaque == number
            assert len(produced) < 100
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            opaques = [(await peer.read()).opaque for _ in range(200)]
            assert opaques == list(range(200))

    run(story())


def test_unread_bytes_of_all_peers_are_bounded_and_others_are_served(clock) -> None:
    """The limit is changed while the server runs."""
    size = 256 * 1024

    def big(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(parts=[memoryview(bytes(size))])

    async def story() -> None:
        started_with = RemotingLimits(high_water_bytes=4 << 20)
        async with (
            serving({1: big, ECHO + 1: echo}, limits=started_with) as server,
            AsyncExitStack() as stack,
        ):
            server.hub.change_limits(max_unread_bytes=6 << 20)
            limits = server.hub.limits
            stalled = [await stack.enter_async_context(raw_peer(server)) for _ in range(6)]
            for peer in stalled:
                peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            good = await stack.enter_async_context(raw_peer(server))
            for number in range(100):  # one request at a time: the responses of one turn may exceed the limit
                for peer in stalled:
                    peer.send(request(1, number))
                good.send(request(ECHO + 1, number))
                assert (await good.read()).opaque == number
            await eventually_async(lambda: server.hub.unread_bytes > limits.max_unread_bytes)
            assert server.hub.unread_bytes < limits.max_unread_bytes + 12 * size
            for peer in stalled:
                peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for peer in stalled:
                assert [(await peer.read()).opaque for _ in range(100)] == list(range(100))
            assert server.hub.unread_bytes == 0

    run(story())


def test_peer_that_reads_nothing_for_a_minute_is_closed_but_not_a_slow_one(clock) -> None:
    size = 256 * 1024

    def big(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(parts=[memoryview(bytes(size))])

    async def story() -> None:
        limits = RemotingLimits(unread_ms=60_000, idle_ms=10**9)
        async with (
            serving({1: big}, clock=clock, limits=limits) as server,
            raw_peer(server) as stalled,
            raw_peer(server) as late,
        ):
            for peer in (stalled, late):
                peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
                peer.send(*(request(1, number) for number in range(100)))
            await eventually_async(lambda: server.hub.unread_bytes > 2 * limits.high_water_bytes)
            assert server.hub.unread_bytes < 3 * limits.high_water_bytes
            clock.advance(59_000)
            server.hub.sweep()
            assert len(server.connections) == 2
            late.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(100):
                await late.read()
            await eventually_async(lambda: is_unread_dropped(server, clock))
            assert len(server.connections) == 1

    with structlog.testing.capture_logs() as logs:
        run(story())
    (line,) = [line for line in logs if line["event"] == "connection_closed"]
    assert "bytes of responses unread for 60 s" in line["reason"]


def test_drained_callback_runs_when_the_peer_has_read() -> None:
    size = 256 * 1024
    drained: list[str] = []

    def big(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(parts=[memoryview(bytes(size))])

    async def story() -> None:
        limits = RemotingLimits(high_water_bytes=1024 * 1024)
        async with serving({1: big, ECHO + 1: echo}, limits=limits) as server, AsyncExitStack() as stack:
            peer = await stack.enter_async_context(raw_peer(server))
            await eventually_async(lambda: server.connections)
            (connection,) = server.connections
            other = await stack.enter_async_context(raw_peer(server))
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(*(request(1, number) for number in range(100)))
            await eventually_async(lambda: server.hub.unread_bytes > limits.high_water_bytes)
            connection.when_drained(lambda each: drained.append(each.peer))
            for number in range(20):  # turns in which the callback could run
                other.send(request(ECHO + 1, number))
                assert (await other.read()).opaque == number
            assert drained == []
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(100):
                await peer.read()
            await eventually_async(lambda: drained)
            assert server.hub.unread_bytes == 0
            connection.when_drained(lambda each: drained.append("immediately"))
            await eventually_async(lambda: len(drained) == 2)

    run(story())


def test_requests_of_a_connection_keep_their_order_over_many_turns(clock) -> None:
    order: list[int] = []

    def note(context: RequestContext) -> RemotingCommand:
        clock.advance(1)
        order.append(context.command.opaque)
        return RemotingCommand.response()

    async def story() -> None:
        async with serving({1: note}, clock=clock) as server, raw_peer(server) as peer:
            peer.send(*(request(1, number, b"x" * 500) for number in range(100)))
            for _ in range(100):
                await peer.read()

    run(story())
    assert order == list(range(100))


def test_many_small_requests_of_one_peer_do_not_delay_others(clock) -> None:
    order: list[int] = []

    def note(context: RequestContext) -> RemotingCommand:
        clock.advance(us=300)
        order.append(context.command.opaque)
        return RemotingCommand.response()

    async def story() -> None:
        limits = RemotingLimits(turn_budget_us=3_000)
        async with (
            serving({1: note}, clock=clock, limits=limits) as server,
            raw_peer(server) as greedy,
            raw_peer(server) as modest,
        ):
            for peer in (greedy, modest):
                peer.send(request(1, 0))
                await peer.read()
            await greedy.deliver(*(request(1, number) for number in range(1, 101)))
            await modest.deliver(request(1, 1000))
            for _ in range(100):
                await greedy.read()
            await modest.read()

    run(story())
    assert sorted(order) == [0, 0, *range(1, 101), 1000]
    assert order.index(1000) < 40


def test_connection_over_the_limit_is_closed() -> None:
    async def story() -> None:
        async with (
            serving(limits=RemotingLimits(max_connections=1)) as server,
            raw_peer(server) as first,
        ):
            first.send(request(ECHO, 1))
            await first.read()
            async with raw_peer(server) as second:
                assert await second.is_closed()
            first.send(request(ECHO, 2))
            assert (await first.read()).opaque == 2

    with structlog.testing.capture_logs():
        run(story())

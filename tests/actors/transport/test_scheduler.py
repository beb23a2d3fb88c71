"""Order within a turn: cheap requests before costly ones, unserved connections before served ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
import structlog

from actors.transport.limits import COSTLY_REQUESTS, RemotingLimits
from actors.transport.request import Cost, RequestContext
from actors.transport.scheduler import Scheduler
from actors.transport.server import RemotingServer
from actors.wire.command import LENGTH_BYTES, PREFIX, RemotingCommand, encode_command
from tests.actors.transport.remoting_peers import RawPeer, raw_peer, request, run, serving
from tests.eventually import eventually_async

SEND, PULL = 1, 2
COSTS = {SEND: Cost.SEND, PULL: Cost.PULL}
A_TURN = 3 + 1 + 4 + 4
"""Maximum number of requests of one millisecond in a turn.

Three in the budget, one costly, and four each of a new and of an old connection.
"""


class Served:
    """Records the served requests as (peer, opaque), in order. Each request takes a millisecond."""

    def __init__(self, clock) -> None:
        self.order: list[tuple[str, int]] = []
        self.turns = [0]
        self.waiting: list[int] = []
        self.waiting_now = lambda: 0
        self._clock = clock
        self.limits = RemotingLimits(turn_budget_us=3_000, turn_share_us=1_000)

    def serving(self):
        handlers = {SEND: self.serve, PULL: self.serve}
        return serving(handlers, clock=self._clock, limits=self.limits, costs=COSTS, tick=self.tick)

    def tick(self) -> None:
        self.turns.append(0)
        self.waiting.append(self.waiting_now())

    def serve(self, context: RequestContext) -> RemotingCommand:
        self._clock.advance(1)
        command = context.command
        self.order.append((command.ext["peer"], command.opaque))
        self.turns[-1] += 1
        return RemotingCommand.response()

    def of(self, peer: str) -> list[int]:
        return [opaque for each, opaque in self.order if each == peer]


async def peers_of(server: RemotingServer, stack: AsyncExitStack, count: int) -> list[RawPeer]:
    peers = [await stack.enter_async_context(raw_peer(server)) for _ in range(count)]
    await eventually_async(lambda: len(server.connections) >= count)
    return peers


def test_send_waits_at_most_one_turn_behind_many_pulls(clock) -> None:
    served = Served(clock)
    waited: list[int] = []

    async def story() -> None:
        async with served.serving() as server, AsyncExitStack() as stack:
            *pulling, sending = await peers_of(server, stack, 31)
            for peer in pulling:
                peer.send(*(request(PULL, number, peer="pulling") for number in range(20)))
            await eventually_async(lambda: len(served.order) > 50)
            for number in range(20):
                before = len(served.order)
                await sending.deliver(request(SEND, number, peer="sending"))
                assert (await sending.read()).opaque == number
                waited.append(served.order.index(("sending", number)) - before)
            for peer in pulling:
                for _ in range(20):
                    await peer.read()

    run(story())
    assert len(served.order) == 620
    assert max(waited) <= 2 * A_TURN, waited  # it is read in the second turn at the latest
    assert max(served.turns) <= A_TURN


def test_pulls_get_a_share_of_each_turn_under_many_sends(clock) -> None:
    served = Served(clock)

    async def story() -> None:
        async with served.serving() as server, AsyncExitStack() as stack:
            *sending, pulling = await peers_of(server, stack, 9)
            for peer in sending:
                peer.send(*(request(SEND, number, peer="sending") for number in range(60)))
            await eventually_async(lambda: len(served.order) > 10)
            await pulling.deliver(*(request(PULL, number, peer="pulling") for number in range(10)))
            assert [(await pulling.read()).opaque for _ in range(10)] == list(range(10))
            for peer in sending:
                assert [(await peer.read()).opaque for _ in range(60)] == list(range(60))

    run(story())
    places = [at for at, (peer, _) in enumerate(served.order) if peer == "pulling"]
    assert places[-1] < 12 * A_TURN
    assert max(b - a for a, b in pairwise(places)) <= A_TURN
    assert max(served.turns) <= A_TURN


def test_single_pull_does_not_wait_for_all_pulls_of_another_peer(clock) -> None:
    served = Served(clock)

    async def story() -> None:
        async with served.serving() as server, AsyncExitStack() as stack:
            greedy, modest = await peers_of(server, stack, 2)
            greedy.send(*(request(PULL, number, peer="greedy") for number in range(100)))
            await eventually_async(lambda: len(served.order) > 10)
            before = len(served.order)
            await modest.deliver(request(PULL, 1, peer="modest"))
            await modest.read()
            assert served.order.index(("modest", 1)) - before <= 2 * A_TURN
            assert [(await greedy.read()).opaque for _ in range(100)] == list(range(100))

    run(story())


def test_new_connection_is_served_before_those_that_were_served(clock) -> None:
    """Many peers send many messages at once; one peer sends one message after another."""
    served = Served(clock)
    waited: list[int] = []

    async def story() -> None:
        async with served.serving() as server, AsyncExitStack() as stack:
            *bulk, single = await peers_of(server, stack, 21)
            for peer in bulk:
                peer.send(*(request(SEND, number, peer="bulk") for number in range(100)))
            await eventually_async(lambda: len(served.order) > 200)  # each has been `new` once
            for number in range(20):
                before = len(served.order)
                await single.deliver(request(SEND, number, peer="single"))
                assert (await single.read()).opaque == number
                waited.append(served.order.index(("single", number)) - before)
            for peer in bulk:
                assert [(await peer.read()).opaque for _ in range(100)] == list(range(100))

    run(story())
    assert max(waited) <= 2 * A_TURN, waited


class Work:
    """Work of a turn; each piece takes 20 µs, and `do_some` adds itself again."""

    def __init__(self, clock, done: list[str], name: str) -> None:
        self._clock = clock
        self._done = done
        self._name = name

    def do_all(self) -> None:
        self._clock.advance(us=20)
        self._done.append(self._name)

    def do_some(self, scheduler: Scheduler) -> None:
        self.do_all()
        scheduler.add_costly(lambda: self.do_some(scheduler))


def test_new_connections_run_in_order_before_old_ones(clock) -> None:
    done: list[str] = []
    scheduler = Scheduler(clock, RemotingLimits())
    for name, is_new in (("old", False), ("new", True), ("newer", True)):
        scheduler.add_cheap(Work(clock, done, name).do_all, is_new=is_new)
    scheduler.serve_cheap()
    assert done == ["new", "newer", "old"]
    assert not scheduler.has_more


def test_costly_work_gets_the_rest_of_the_budget_but_at_least_its_share(clock) -> None:
    done: list[str] = []
    scheduler = Scheduler(clock, RemotingLimits(turn_budget_us=3_000, turn_share_us=1_000))
    Work(clock, done, "pull").do_some(scheduler)

    def pulls_of_a_turn(sends_us: int) -> int:
        scheduler.begin()
        before = len(done)
        clock.advance(us=sends_us)
        scheduler.end_reading()
        clock.advance(us=5_000)  # the tick is not counted
        scheduler.serve_costly()
        scheduler.end()
        assert scheduler.has_more
        return len(done) - before

    assert pulls_of_a_turn(sends_us=0) == 150
    assert pulls_of_a_turn(sends_us=1_000) == 100
    assert pulls_of_a_turn(sends_us=2_500) == 50
    assert pulls_of_a_turn(sends_us=10_000) == 50


def test_costly_work_gets_the_time_of_cheap_work_while_a_peer_sends_singly(clock) -> None:
    done: list[str] = []
    scheduler = Scheduler(clock, RemotingLimits(turn_budget_us=3_000, turn_share_us=1_000))
    Work(clock, done, "pull").do_some(scheduler)

    def pulls_of_a_turn(sends_us: int) -> int:
        scheduler.begin()
        before, began_ns = len(done), clock.monotonic_ns()
        clock.advance(us=sends_us)
        if sends_us:
            scheduler.took_cheap(began_ns)
        scheduler.end_reading()
        scheduler.serve_costly()
        scheduler.end()
        return len(done) - before

    assert [pulls_of_a_turn(us) for us in (0, 200, 10, 0, 2_500, 0)] == [150, 10, 3, 3, 50, 3]
    clock.advance(us=1_000)
    assert pulls_of_a_turn(sends_us=0) == 150


def test_resumed_and_costly_requests_alternate(clock) -> None:
    done: list[str] = []
    scheduler = Scheduler(clock, RemotingLimits(turn_budget_us=3_000, turn_share_us=1_000))
    Work(clock, done, "pull").do_some(scheduler)
    Work(clock, done, "other").do_some(scheduler)
    for _ in range(10):
        scheduler.add_costly(Work(clock, done, "resumed").do_all)
    scheduler.begin()
    scheduler.end_reading()
    scheduler.serve_costly()
    assert done[2:14] == ["pull", "other", *["resumed"] * 10]
    assert done[14:18] == ["pull", "other"] * 2


def test_send_response_is_written_before_pulls_of_the_same_turn(clock) -> None:
    events: list[str] = []

    def send(context: RequestContext) -> RemotingCommand:
        events.append("send")
        return RemotingCommand.response()

    def pull(context: RequestContext) -> RemotingCommand:
        collected_bytes = context.connection.hub.scheduler.collected_bytes
        events.append(
            "pull, all written" if not collected_bytes else f"pull, {collected_bytes} bytes unwritten"
        )
        return RemotingCommand.response()

    async def story() -> None:
        handlers = {SEND: send, PULL: pull}
        tick = serving(handlers, clock=clock, costs=COSTS, tick=lambda: events.append("tick"))
        async with tick as server, raw_peer(server) as peer:
            await eventually_async(lambda: server.connections)
            events.clear()
            await peer.deliver(request(PULL, 0), request(SEND, 1))
            assert [(await peer.read()).opaque for _ in range(2)] == [1, 0]

    run(story())
    assert events[:3] == ["send", "tick", "pull, all written"]


def test_response_sent_by_the_tick_does_not_cause_another_turn(clock) -> None:
    waiting: list[RequestContext] = []
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(len(waiting))
        while waiting:
            waiting.pop().reply(RemotingCommand.response())

    async def story() -> None:
        async with (
            serving({SEND: waiting.append}, clock=clock, tick=tick) as server,
            raw_peer(server) as peer,
        ):
            for number in range(5):
                peer.send(request(SEND, number))
                assert (await peer.read()).opaque == number

    run(story())
    assert ticks == [1] * 5


def test_exception_in_a_drained_callback_is_logged_and_isolated(clock) -> None:
    done: list[int] = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    async def story() -> None:
        async with Served(clock).serving() as server, raw_peer(server) as peer:
            await eventually_async(lambda: server.connections)
            (connection,) = server.connections
            connection.when_drained(fail)
            connection.when_drained(lambda _: done.append(1))
            await eventually_async(lambda: done)
            peer.send(request(PULL, 7, peer="pull"))
            assert (await peer.read()).opaque == 7

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert [line["event"] for line in logs] == ["callback_failed"]


def test_exception_in_the_tick_does_not_hold_back_responses(clock) -> None:
    bugs: list[object] = []
    served = Served(clock)

    def tick() -> None:
        raise ZeroDivisionError

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context["exception"]))
        handlers = {SEND: served.serve, PULL: served.serve}
        failing = serving(handlers, clock=clock, limits=served.limits, costs=COSTS, tick=tick)
        async with failing as server, raw_peer(server) as peer:
            for number in range(0, 6, 2):
                await peer.deliver(request(PULL, number, peer="p"), request(SEND, number + 1, peer="p"))
                assert [(await peer.read()).opaque for _ in range(2)] == [number + 1, number]
            # More than one turn handles: the next turn starts although no further bytes arrive.
            peer.send(*(request(PULL, number, peer="p") for number in range(20)))
            assert [(await peer.read()).opaque for _ in range(20)] == list(range(20))

    run(story())
    assert {type(bug) for bug in bugs} == {ZeroDivisionError}


def test_sends_overtake_pulls_and_each_kind_keeps_its_order(clock) -> None:
    served = Served(clock)

    async def story() -> None:
        async with served.serving() as server, raw_peer(server) as peer:
            kinds = [PULL, PULL, SEND, PULL, SEND, SEND]
            names = {SEND: "send", PULL: "pull"}
            await peer.deliver(*(request(kind, at, peer=names[kind]) for at, kind in enumerate(kinds)))
            for _ in kinds:
                await peer.read()

    run(story())
    assert served.order == [("send", 2), ("send", 4), ("send", 5), ("pull", 0), ("pull", 1), ("pull", 3)]


def test_waiting_costly_requests_of_one_peer_are_bounded(clock) -> None:
    served = Served(clock)
    served.limits = RemotingLimits(costly_requests_max=8)

    async def story() -> None:
        async with served.serving() as server, raw_peer(server) as peer:
            (used,) = (each for each in server.bounds() if each.bound is COSTLY_REQUESTS)
            served.waiting_now = used.read
            requests = [request(PULL, number, peer="pull") for number in range(40)]
            await peer.deliver(*requests, request(SEND, 40, peer="send"))
            for _ in range(41):
                await peer.read()

    run(story())
    assert max(served.waiting) == 8
    assert served.of("pull") == list(range(40))
    assert 32 <= served.order.index(("send", 40)) < 40


def test_costly_request_with_a_body_is_handled_immediately(clock) -> None:
    """It is not queued, because it may be as long as a frame."""
    served = Served(clock)

    async def story() -> None:
        async with served.serving() as server, raw_peer(server) as peer:
            await peer.deliver(request(PULL, 1, peer="pull"), request(PULL, 2, b"x", peer="with a body"))
            for _ in range(2):
                await peer.read()

    run(story())
    assert served.order == [("with a body", 2), ("pull", 1)]


def test_costly_requests_are_decoded_only_at_the_end_of_the_turn(clock) -> None:
    served = Served(clock)
    header = b'{"code":%d,"flag":0,"opaque":1,"language":"JAVA","version":no}' % PULL
    was_refused_at_tick: list[bool] = []

    async def story() -> None:
        handlers = {PULL: served.serve}
        note = serving(
            handlers, clock=clock, costs=COSTS, tick=lambda: was_refused_at_tick.append(bool(logs))
        )
        async with note as server, raw_peer(server) as peer:
            peer.write(PREFIX.pack(LENGTH_BYTES + len(header), len(header)) + header)
            assert await peer.is_closed()

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert [line["event"] for line in logs] == ["connection_refused"]
    assert not was_refused_at_tick[0]


@pytest.mark.parametrize("encoding", [0, 1])
def test_costly_requests_in_fragments_and_over_the_limit_are_handled(clock, encoding: int) -> None:
    served = Served(clock)
    requests = [request(PULL, number, peer="pull") for number in range(400)]
    for each in requests:
        each.serialize_type = encoding
    stream = b"".join(map(encode_command, requests))
    assert len(stream) > 16 * 1024

    async def story() -> None:
        async with served.serving() as server, raw_peer(server) as peer, raw_peer(server) as other:
            for at in range(0, 2_000, 7):
                peer.write(stream[at : at + 7])
                await asyncio.sleep(0)
            other.send(request(SEND, 1, peer="send"))
            await other.read()
            peer.write(stream[at + 7 :])
            assert [(await peer.read()).opaque for _ in requests] == list(range(400))

    run(story())
    assert served.of("pull") == list(range(400))


def test_requests_set_aside_are_answered_after_discard_input(clock) -> None:
    served = Served(clock)

    async def story() -> None:
        def discard_input() -> None:
            for connection in server.connections:
                connection.discard_input()

        discarding = serving({PULL: served.serve}, clock=clock, costs=COSTS, tick=discard_input)
        async with discarding as server, raw_peer(server) as peer:
            peer.send(request(PULL, 1, peer="pull"))
            assert (await peer.read()).opaque == 1
            peer.send(request(PULL, 2, peer="pull"))
            await server.stop()
            assert await peer.is_closed()

    run(story())
    assert served.order == [("pull", 1)]

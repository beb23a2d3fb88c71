"""The table of the input's states, and an input whose peer, turns, memory and delays come in any order.

The socket is a fake, so that each of its reads is one step. Time stands still unless a request takes some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.transport.hub import Hub
from actors.transport.input_queue import InputQueue
from actors.transport.limits import RemotingLimits
from actors.transport.output_buffer import OutputBuffer
from actors.transport.read_states import FROM_OUTSIDE, NEXT, ReadEvent, ReadState
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.frame import CodeMarks
from actors.wire.remoting_errors import ProtocolError
from tests.actors.transport.remoting_peers import request
from tests.conftest import ClockAtRest

CHEAP, SLOW, LOUD, HOLDING, PULL = 1, 2, 3, 4, 5
LIMITS = RemotingLimits(
    costly_requests_max=4, turn_budget_us=1_000, high_water_bytes=100_000, max_kept_bytes=1_000_000
)
LONG_BYTES = 400_000
PARTS = st.sampled_from([20, 1_000_000, 1_000_000])
"""Sizes of the parts in which bytes arrive."""
REQUESTS_BEFORE_STOP = 30
TURNS_MAX = 200
"""More than any generated number of requests needs."""


# ---- the table --------------------


def test_every_pair_of_state_and_event_is_in_the_table_or_an_error() -> None:
    decoding = (ReadState.READING, ReadState.DECODING)
    for state, event in product(ReadState, ReadEvent):
        after = NEXT.get((state, event))
        if event is ReadEvent.STOP or state is ReadState.STOPPED:
            expected = after is ReadState.STOPPED or (after is None and event not in FROM_OUTSIDE)
        elif event is ReadEvent.HOLD:
            expected = after is ReadState.HELD
        elif event in FROM_OUTSIDE:
            expected = after in (state, ReadState.OLD, ReadState.DECODING)
        elif event is ReadEvent.BYTES:  # in READING they need no event
            expected = (after is not None) == (state is ReadState.ASIDE)
        else:
            expected = after is None or state in decoding or state is ReadState.ASIDE
        assert expected, (state, event, after)


def test_every_state_but_stopped_leads_back_to_reading() -> None:
    for state in set(ReadState) - {ReadState.STOPPED}:
        reached = {state}
        while ReadState.READING not in reached:
            leaving = {event for before, event in NEXT if before in reached} - {
                ReadEvent.HOLD,
                ReadEvent.STOP,
            }
            more = {NEXT[each] for each in product(reached, leaving) if each in NEXT} - reached
            assert more, state
            reached |= more


# ---- an input in any order of events --------------------


class Socket(asyncio.Transport):
    """A socket whose peer reads only when a step says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.unread_bytes = 0

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the steps say when the peer is behind."""

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unread_bytes += len(data)


class Loop:
    """An event loop that runs what was scheduled only when a step says so."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.scheduled.append(callback)

    def run(self) -> None:
        scheduled, self.scheduled = self.scheduled, []
        for callback in scheduled:
            callback()


class Codes:
    costly_codes = CodeMarks([PULL])
    taken_codes = CodeMarks()


class InputMachine(RuleBasedStateMachine):
    """One connection's input with its real hub, output and account of memory."""

    @initialize()
    def open(self) -> None:
        self.loop = Loop()
        self.clock = ClockAtRest()
        self.socket = Socket()
        self.arriving = bytearray()
        self.sent: list[int] = []  # codes, by number of the request
        self.handled: list[int] = []  # numbers
        self.held: list[Callable[[], None]] = []
        self.stopped_at: int | None = None
        self.hub = Hub(self.clock, LIMITS, is_server=True)
        self.hub.loop = self.loop  # type: ignore[assignment]
        self.output = OutputBuffer(self.hub)
        self.input = InputQueue(
            self.hub, self.output, Codes(), self.handle, lambda _, at, __: at, self.fail, self.fail
        )
        self.share = self.hub.account.share("10.0.0.1", lambda _: False)
        self.other = self.hub.account.share("10.0.0.2", lambda _: False)
        self.other_bytes = 0
        self.output.connection_made(self.socket, self.share)
        self.input.connection_made(self.socket, self.share)

    def fail(self, error: ProtocolError | RemotingCommand) -> None:
        raise AssertionError(error)

    def handle(self, command: RemotingCommand) -> None:
        assert not self.held or self.stopped_at is not None, "handled while it was held"
        assert self.stopped_at is None or command.code == PULL, "handled after stop"
        self.handled.append(command.opaque)
        if command.code == SLOW:
            self.clock.advance(ms=2)
        elif command.code == HOLDING:
            self.hold()
        elif command.code == LOUD:
            if self.output.is_empty:
                self.hub.mark_dirty(self)  # type: ignore[arg-type]
            self.output.append_frames(bytes(60_000))

    def flush(self) -> None:
        """Write the output, as a connection does for its hub."""
        self.output.flush()
        if self.socket.unread_bytes > 64 * 1024 and not self.output.is_behind:
            self.output.fall_behind()
        self.input.resume()

    # ---- the peer --------------------

    @rule(codes=st.lists(st.sampled_from([CHEAP, SLOW, LOUD, HOLDING, PULL]), max_size=8), arriving=PARTS)
    def send(self, codes: list[int], arriving: int) -> None:
        for code in codes:
            self.send_one(code, b"")
        self.arrive(arriving)

    @rule(count=st.integers(1, 12), arriving=PARTS)
    def send_pulls(self, count: int, arriving: int) -> None:
        self.send([PULL] * count, arriving)

    @rule(arriving=PARTS)
    def send_long_frame(self, arriving: int) -> None:
        self.send_one(CHEAP, bytes(LONG_BYTES))
        self.arrive(arriving)

    def send_one(self, code: int, body: bytes) -> None:
        if self.stopped_at is None:
            self.arriving += encode_command(request(code, len(self.sent), body))
            self.sent.append(code)

    @rule(size_bytes=PARTS)
    def arrive(self, size_bytes: int) -> None:
        room = self.input.get_buffer()
        count = min(size_bytes, len(self.arriving), len(room))
        if count and self.socket.is_read:
            room[:count] = self.arriving[:count]
            del self.arriving[:count]
            self.input.received(count)

    @rule()
    def read_responses(self) -> None:
        self.socket.unread_bytes = 0
        if self.output.is_behind:
            self.output.catch_up()
            self.input.resume()

    # ---- this side --------------------

    @rule()
    def end_turn(self) -> None:
        self.loop.run()

    @rule()
    def time_passes(self) -> None:
        self.clock.advance(ms=2)

    @rule(is_over=st.booleans())
    def others_fill_the_account(self, is_over: bool) -> None:
        if not self.other_bytes:
            self.other_bytes = 1_100_000 if is_over else 600_000
            self.other.hold(self.other_bytes)
            self.other.resume(1)  # so that a long frame has to wait

    @precondition(lambda self: self.other_bytes)
    @rule()
    def others_release(self) -> None:
        released, self.other_bytes = self.other_bytes, 0
        self.other.pause(1)
        self.other.hold(-released)

    @rule()
    def hold(self) -> None:
        if self.stopped_at is None:
            self.held.append(self.input.release)
            self.input.hold()

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        releases, self.held = self.held, []
        for each in releases:
            each()

    @precondition(lambda self: self.stopped_at is None and len(self.sent) >= REQUESTS_BEFORE_STOP)
    @rule()
    def stop(self) -> None:
        self.stopped_at = len(self.handled)
        self.input.stop()

    @rule()
    def everything_gives_way(self) -> None:
        """End all that the input can wait for: it handles all requests, and the socket is read again."""
        for _ in range(TURNS_MAX):
            if self.held:
                self.release()
            if self.other_bytes:
                self.others_release()
            self.read_responses()
            self.arrive(1_000_000)
            self.end_turn()
        assert self.socket.is_read
        assert not self.arriving
        assert not self.input.waiting
        assert self.share.size_bytes == 0
        if self.stopped_at is None:
            assert sorted(self.handled) == list(range(len(self.sent)))

    # ---- what must hold --------------------

    @invariant()
    def requests_of_a_kind_keep_their_order_and_none_is_lost(self) -> None:
        if hasattr(self, "loop"):
            for is_costly in (False, True):
                sent = [number for number, code in enumerate(self.sent) if (code == PULL) is is_costly]
                handled = [number for number in self.handled if (self.sent[number] == PULL) is is_costly]
                assert handled == sent[: len(handled)]

    @invariant()
    def waiting_requests_are_bounded(self) -> None:
        if hasattr(self, "loop") and self.stopped_at is None:
            assert self.input.waiting <= LIMITS.costly_requests_max


InputMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
test_input_states_lose_no_request_in_any_order_of_events = InputMachine.TestCase


def test_a_stopped_connection_is_still_read_and_drops_what_comes() -> None:
    machine = InputMachine()
    machine.open()
    machine.send([SLOW] * 4 + [CHEAP, PULL], 1_000_000)
    assert [machine.socket.is_read, machine.handled] == [False, [0, 1, 2, 3]]
    machine.stop()
    machine.everything_gives_way()
    assert [machine.socket.is_read, machine.handled] == [True, [0, 1, 2, 3]]


def test_a_stopped_connection_takes_no_place_for_its_long_frame() -> None:
    machine = InputMachine()
    machine.open()
    machine.others_fill_the_account(is_over=True)
    machine.send_long_frame(1_000)
    assert not machine.socket.is_read
    machine.stop()
    machine.others_release()
    assert machine.share.size_bytes == 0

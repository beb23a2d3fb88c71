"""Hub: what the connections of one server or client share – memory, limits, the turn's end, and time-outs.

A turn of the loop reads every socket that has bytes; answers collect meanwhile. One callback at the turn's
end then runs the service's own tick, writes each connection that has something once, and lets those go on
that had used up their share of the turn.

The requests of all connections together have a budget of time, and one of bytes to answer with. What comes
when it is used up waits for the next turn, where those who have waited go first and the others behind them:
so timers, new connections and writes have their moment however many peers there are.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from actors.remoting.busy_poll import BusyPoll
from actors.remoting.frame import MAX_ASSEMBLY_BYTES, ReceiveMemory
from store.clock import Clock

_NS_PER_US = 1_000
_NS_PER_MS = 1_000_000
# A timer that fires a little early would find nothing expired and spin.
_TIMER_SLACK_S = 0.001
# Each peer gets one turn's answers before it is known to be behind, so many peers can pass a bound.
SHED_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """The bounds of what a peer may make us hold."""

    input_budget_bytes: int = 256 * 1024
    input_budget_requests: int = 128
    """Small requests cost by their number: 128 pulls take some 4 ms."""
    turn_budget_us: int = 25_000
    """Of all connections' requests in one turn. With less, a send waits behind pulls for turns: beside a cold
    backlog 10 ms made one take 88 ms.
    """
    turn_output_bytes: int = 16 * 1024 * 1024
    """Of all connections' answers in one turn: so much, and one answer more, before they are written."""
    high_water_bytes: int = 4 * 1024 * 1024
    """Of one connection's answers that its peer has not read: from here on no further ones are produced."""
    max_unread_bytes: int = 1024 * 1024 * 1024
    """Of all connections' answers: from here on nothing more is read of peers that are behind. At
    `SHED_RATIO` times as much those who leave most are closed.
    """
    unread_ms: int = 60_000
    """How long a peer may leave answers unread without taking a single byte."""
    idle_ms: int = 120_000
    max_connections: int = 20_000
    max_assembly_bytes: int = MAX_ASSEMBLY_BYTES
    connect_timeout_ms: int = 3_000
    busy_poll_us: int = 0


class Peer(Protocol):
    """What a hub asks of each of its connections."""

    is_queued: bool
    """Whether it waits in the hub for the next turn."""
    unread_bytes: int
    """What its peer had not taken when that was noted last."""

    def flush(self) -> None:
        """Write what has collected."""
        ...

    def go_on(self) -> None:
        """Go on reading: a new turn has begun."""
        ...

    def expire_calls(self, now_ns: int) -> int | None:
        """Fail the calls whose deadline has passed; gives the next deadline, or None where none waits."""
        ...

    def note_unread(self) -> None:
        """Note what the peer has not taken, here and in the hub's sum."""
        ...

    def check_unread(self, now_ns: int, unread_ns: int) -> None:
        """End where the peer has not taken a byte for so long."""
        ...

    def check_idle(self, now_ns: int, idle_ns: int) -> None:
        """End where nothing has moved for so long."""
        ...

    def hush(self) -> None:
        """Take no request any more."""
        ...

    def close(self, reason: str) -> None:
        """End when what waits is written."""
        ...

    def abort(self, reason: str) -> None:
        """End at once."""
        ...


class Hub:
    """Shared by the connections of one server or one client; lives on one event loop."""

    def __init__(self, clock: Clock, limits: RemotingLimits, tick: Callable[[], None] | None = None) -> None:
        self.clock = clock
        self.limits = limits
        self.memory = ReceiveMemory(limits.max_assembly_bytes)
        self.connections: set[Peer] = set()
        self.leaving: set[Peer] = set()  # closed by us; their peers have not taken all yet
        self.tick_requested = False
        self.turn_is_over = False  # its budget is used up, as far as is known
        self.collected_bytes = 0  # answers of this turn that are not written yet
        self.unread_bytes = 0  # by peers that are behind, as far as is known
        self._tick = tick
        self._busy_poll = BusyPoll(clock, limits.busy_poll_us)
        self._dirty: list[Peer] = []
        self._held: deque[Peer] = deque()
        self._turn_ends_ns = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this hub lives on: the one it was first used on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def request_tick(self) -> None:
        """Ask for the turn's end to be run; asking twice in a turn is asking once. On the loop's thread
        only.
        """
        if not self.tick_requested:
            self.tick_requested = True
            self._begin_turn()
            self.loop.call_soon(self._end_turn)

    def is_spent(self) -> bool:
        """Whether what is left to do for peers waits for the next turn."""
        if not self.turn_is_over:
            self.turn_is_over = (
                self.collected_bytes > self.limits.turn_output_bytes
                or self.clock.monotonic_ns() >= self._turn_ends_ns
            )
        return self.turn_is_over

    def mark_dirty(self, connection: Peer) -> None:
        """This connection has something to write."""
        self._dirty.append(connection)
        if not self.tick_requested:
            self.request_tick()

    def hold(self, connection: Peer) -> None:
        """This connection has had its share of the turn; it goes on after the turn's end."""
        if not connection.is_queued:
            connection.is_queued = True
            self._held.append(connection)
        if not self.tick_requested:
            self.request_tick()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this beside the loop's turns; cancelled by `stop`."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def arm(self, deadline_ns: int) -> None:
        """See to it that `expire_calls` runs at this moment or soon after."""
        if self._timer is not None:
            if self._timer_ns <= deadline_ns:
                return
            self._timer.cancel()
        self._timer_ns = deadline_ns
        delay_s = max(0, deadline_ns - self.clock.monotonic_ns()) / 1e9 + _TIMER_SLACK_S
        self._timer = self.loop.call_later(delay_s, self._on_timer)

    def expire_calls(self) -> None:
        """Fail the calls whose time is up."""
        now_ns = self.clock.monotonic_ns()
        earliest_ns: int | None = None
        for connection in tuple(self.connections):
            next_ns = connection.expire_calls(now_ns)
            if next_ns is not None and (earliest_ns is None or next_ns < earliest_ns):
                earliest_ns = next_ns
        if earliest_ns is not None:
            self.arm(earliest_ns)

    def sweep(self) -> None:
        """Close the connections that have been idle, in the middle of one frame, or left answers unread for
        longer than the limit.
        """
        now_ns = self.clock.monotonic_ns()
        limits = self.limits
        for connection in (*self.connections, *self.leaving):
            connection.check_unread(now_ns, limits.unread_ms * _NS_PER_MS)
        for connection in tuple(self.connections):
            connection.check_idle(now_ns, limits.idle_ms * _NS_PER_MS)

    async def stop(self) -> None:
        """Write what is left, close all connections and end all tasks."""
        self._flush()
        for connection in tuple(self.connections):
            connection.close("this process is shutting down")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_timer(self) -> None:
        self._timer = None
        self.expire_calls()

    def _end_turn(self) -> None:
        self.tick_requested = self.turn_is_over = False
        try:
            if self._tick is not None:
                self._tick()
        finally:
            self._flush()
            if self._held:
                self._serve_held()
            self._busy_poll.after_turn(self.loop)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        self.collected_bytes = 0
        if self.unread_bytes > SHED_RATIO * self.limits.max_unread_bytes:
            self._shed()

    def _shed(self) -> None:
        """Close those who leave most unread, until all together are within the bound again."""
        peers = [*self.connections, *self.leaving]
        for connection in peers:
            connection.note_unread()
        limit_bytes = self.limits.max_unread_bytes
        for connection in sorted(peers, key=lambda each: each.unread_bytes, reverse=True):
            if self.unread_bytes <= limit_bytes:
                return
            connection.abort(
                f"{connection.unread_bytes:,} bytes of answers unread, more than by any other peer, while "
                f"all together leave {self.unread_bytes:,} (max_unread_bytes {limit_bytes:,})"
            )

    def _begin_turn(self) -> None:
        self.turn_is_over = False
        self._turn_ends_ns = self.clock.monotonic_ns() + self.limits.turn_budget_us * _NS_PER_US

    def _serve_held(self) -> None:
        """Those that wait, in the order in which they came; who has more to do then stands at the end."""
        self.request_tick()
        self._begin_turn()  # what the tick and the writes have taken is not theirs
        for _ in range(len(self._held)):
            connection = self._held.popleft()
            connection.is_queued = False
            connection.go_on()
            if self.is_spent():
                break

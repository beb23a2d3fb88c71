"""Hub: what the connections of one server or client share – memory, limits, turns and time-outs.

A turn of the loop reads every socket that has bytes; answers collect meanwhile. One callback at the turn's
end then runs the service's own tick, writes each connection that has something once, does the costly
requests, writes their answers, and lets those go on that wait (see `turn`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from actors.remoting.busy_poll import BusyPoll
from actors.remoting.frame import ReceiveMemory
from actors.remoting.limits import SHED_RATIO, RemotingLimits
from actors.remoting.turn import Served, Turn, Waiting
from store.clock import NS_PER_MS, Clock

# A timer that fires a little early would find nothing expired and spin.
_TIMER_SLACK_S: Final = 0.001


class Peer(Served, Protocol):
    """What a hub asks of each of its connections."""

    unread_bytes: int
    """What its peer had not taken when that was noted last."""

    def flush(self) -> None:
        """Write what has collected."""
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
        self.turn = Turn(clock, limits)
        self.tick_requested = False
        self.unread_bytes = 0  # by peers that are behind, as far as is known
        self._tick = tick
        self._is_ending = False  # the turn: what collects now is written before it is over
        self._busy_poll = BusyPoll(clock, limits.busy_poll_us)
        self._dirty: list[Peer] = []
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
            if not self._is_ending:
                self.turn.begin()
            self.loop.call_soon(self._end_turn)

    def mark_dirty(self, connection: Peer) -> None:
        """This connection has something to write."""
        self._dirty.append(connection)
        self._need_end()

    def hold(self, connection: Peer, *, is_late: bool = False) -> None:
        """This connection goes on after the turn's end: it has had its share, or came too late for one."""
        self.turn.hold(connection, is_late=is_late)
        self.request_tick()

    def line_up(self, connection: Peer) -> None:
        """This connection has costly requests, which are done at the turn's end."""
        self.turn.line_up(connection)
        self._need_end()

    def resume(self, requests: Iterable[Waiting]) -> None:
        """These requests wait no more: they go on at the turn's end."""
        self.turn.resumed.extend(requests)
        if self.turn.resumed:
            self._need_end()

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
            connection.check_unread(now_ns, limits.unread_ms * NS_PER_MS)
        for connection in tuple(self.connections):
            connection.check_idle(now_ns, limits.idle_ms * NS_PER_MS)

    async def stop(self) -> None:
        """Write what is left, close all connections and end all tasks."""
        self.flush()
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

    def _need_end(self) -> None:
        """See to it that this turn has an end; while it is in it, what collects is still written."""
        if not self.tick_requested and not self._is_ending:
            self.request_tick()

    def _end_turn(self) -> None:
        turn = self.turn
        self.tick_requested, self._is_ending = False, True
        turn.end_reading()
        try:
            self._answer_all()
        finally:
            turn.end()
            if turn.has_more:
                self.request_tick()
            self._is_ending = False
            if self.tick_requested:
                turn.read_on()
            self._busy_poll.after_turn(self.loop)

    def _answer_all(self) -> None:
        """Run the tick, do what is costly, and write; what one of them raises keeps no answer back."""
        try:
            if self._tick is not None:
                self._tick()
        finally:
            try:
                self.flush()
                if self.turn.resumed or self.turn.line:
                    self.turn.serve_costly()
            finally:
                self.flush()

    def flush(self) -> None:
        """Write all that has been answered."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        self.turn.collected_bytes = 0
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

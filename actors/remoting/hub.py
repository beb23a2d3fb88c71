"""Hub: what the connections of one server or client share: memory, limits, turns and time-outs.

A turn reads every socket of the loop that has bytes; responses are collected meanwhile. One callback at the
end of the turn runs the service's tick, writes each connection that has something once, does costly work and
writes its responses, and reads on the connections that had to wait (`Turn` decides the order):

                request_tick            callback of the loop
    between turns ────────► reading ────────────────────────► ending ──► reading, if work is left
                                                                └──────► between turns
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol

from actors.remoting.busy_poll import BusyPoll
from actors.remoting.frame import ReceiveMemory
from actors.remoting.limits import SHED_RATIO, RemotingLimits
from actors.remoting.turn import Turn, Work
from store.clock import Clock

# A timer that fires a little early would find nothing expired and spin.
_TIMER_SLACK_S: Final = 0.001


class Resumable(Protocol):
    """A request that was held."""

    def resume(self) -> None:
        """Answer it: what it waited for has come, or its time is over."""


class Peer(Protocol):
    """What a hub uses of its connections."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that the peer had not read when they were last counted."""
        ...

    def flush(self) -> None:
        """Write what is collected."""
        ...

    def expire_calls(self, now_ns: int) -> int | None:
        """Fail the calls whose deadline has passed; return the next deadline, if any."""
        ...

    def count_unread(self) -> None:
        """Count what the peer has not read, here and in the hub's sum."""
        ...

    def check(self, now_ns: int) -> None:
        """Abort if the peer has not read, or nothing has moved, for longer than the limit."""
        ...

    def discard_input(self) -> None:
        """Take no further request."""
        ...

    def close(self, reason: str) -> None:
        """Close when everything is written."""
        ...

    def abort(self, reason: str) -> None:
        """Close at once."""
        ...


class Hub:
    """Shared by the connections of one server or one client; lives on one event loop."""

    def __init__(self, clock: Clock, limits: RemotingLimits, tick: Callable[[], None] | None = None) -> None:
        self.clock = clock
        self.limits = limits
        self.memory = ReceiveMemory(limits.max_assembly_bytes)
        self.connections: set[Peer] = set()
        self.leaving: set[Peer] = set()  # closed by this side; their peers have not read everything yet
        self.turn = Turn(clock, limits)
        self.unread_bytes = 0  # by all peers that are behind, when last counted
        self._tick = tick
        self._tick_requested = False
        self._is_ending = False
        self._busy_poll = BusyPoll(clock, limits.busy_poll_us)
        self._dirty: list[Peer] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this hub: the one it was first used on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def request_tick(self) -> bool:
        """Request the end of a turn, and begin the turn unless one is under way; return True if it was not
        requested before. On the loop's thread only.
        """
        if self._tick_requested:
            return False
        self._tick_requested = True
        if not self._is_ending:
            self.turn.begin()
        self.loop.call_soon(self._end_turn)
        return True

    def mark_dirty(self, connection: Peer) -> None:
        """Flush this connection at the end of the turn."""
        self._dirty.append(connection)
        self._need_end()

    def read_later(self, read_on: Work, *, is_new: bool) -> None:
        """Read a connection on after the end of the turn: before others, if it is new."""
        self.turn.add_cheap(read_on, is_new=is_new)
        self.request_tick()

    def enqueue(self, work: Work) -> None:
        """Do this piece of costly work at the end of the turn."""
        self.turn.add_costly(work)
        self._need_end()

    def resume(self, requests: Iterable[Resumable]) -> None:
        """Resume held requests at the end of the turn, among the costly work."""
        for request in requests:
            self.enqueue(request.resume)

    def change_limits(self, **changes: int) -> None:
        """Change limits of connections and of what they leave unread; those of a turn and of memory stay."""
        self.limits = replace(self.limits, **changes)

    def add_unread(self, size_bytes: int) -> None:
        """Add to the bytes that peers leave unread; negative when they have read."""
        self.unread_bytes += size_bytes

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in a task of its own; cancelled by `stop`."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def arm(self, deadline_ns: int) -> None:
        """Run `expire_calls` at this moment or soon after."""
        at_s = self.loop.time() + max(0, deadline_ns - self.clock.monotonic_ns()) / 1e9 + _TIMER_SLACK_S
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at_s, self._on_timer)

    def expire_calls(self) -> None:
        """Fail the calls whose deadline has passed."""
        now_ns = self.clock.monotonic_ns()
        deadlines_ns = [connection.expire_calls(now_ns) for connection in tuple(self.connections)]
        earliest_ns = min((each for each in deadlines_ns if each is not None), default=None)
        if earliest_ns is not None:
            self.arm(earliest_ns)

    def sweep(self) -> None:
        """Close the connections that have been idle, in the middle of one frame, or left responses unread for
        longer than the limit.
        """
        now_ns = self.clock.monotonic_ns()
        for connection in (*self.connections, *self.leaving):
            connection.check(now_ns)

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

    def flush(self) -> None:
        """Write all collected responses."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        self.turn.written()
        if self.unread_bytes > SHED_RATIO * self.limits.max_unread_bytes:
            self._shed()

    def _on_timer(self) -> None:
        self._timer = None
        self.expire_calls()

    def _need_end(self) -> None:
        # In the end of a turn whatever is added is still done: no further one is needed.
        if not self._is_ending:
            self.request_tick()

    def _end_turn(self) -> None:
        turn = self.turn
        self._tick_requested, self._is_ending = False, True
        turn.end_reading()
        try:
            self._respond_to_all()
        finally:
            turn.end()
            if turn.has_more:
                self.request_tick()
            self._is_ending = False
            if self._tick_requested:
                turn.serve_cheap()
            self._busy_poll.after_turn(self.loop)

    def _respond_to_all(self) -> None:
        """Run the tick, do costly work, and write; an exception in one of them keeps no response back."""
        try:
            if self._tick is not None:
                self._tick()
        finally:
            try:
                self.flush()
                self.turn.serve_costly()
            finally:
                self.flush()

    def _shed(self) -> None:
        """Close the connections that leave most unread, until all together are within the bound again."""
        peers = [*self.connections, *self.leaving]
        for connection in peers:
            connection.count_unread()
        limit_bytes = self.limits.max_unread_bytes
        for connection in sorted(peers, key=lambda each: each.unread_bytes, reverse=True):
            if self.unread_bytes <= limit_bytes:
                return
            connection.abort(
                f"{connection.unread_bytes:,} bytes of answers unread, more than by any other peer, while "
                f"all together leave {self.unread_bytes:,} (max_unread_bytes {limit_bytes:,})"
            )

"""Hub: buffers, limits, turns and timeouts that the connections of one server or client share.

In a turn the event loop reads every socket that has bytes; the responses are collected. One callback at the
end of the turn runs the service's tick, writes the responses (one write per connection), handles costly
requests and writes their responses, and continues to read the connections that were paused. `Scheduler`
decides the order.

                 begin_turn             callback of the loop
    between turns ────────► reading ────────────────────────► ending ──► reading, if work is left
                                                                └──────► between turns

Received bytes begin a turn; `request_tick` begins one too, and also lets the tick know (`was_requested`).
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Protocol

from actors.beat import on_beat_s
from actors.bounds import Use
from actors.memory_account import STALLED_MS, MemoryAccount
from actors.transport.busy_poll import BusyPoll
from actors.transport.limits import CONNECTIONS, CONNECTIONS_PER_ADDRESS, SHED_RATIO, RemotingLimits
from actors.transport.scheduler import Scheduler, Work
from actors.wire.frame import ReceiveMemory
from store.common.clock import Clock

# Without slack a timer that fires slightly early would find no expired call and be rescheduled in a busy
# loop.
_TIMER_SLACK_S: Final = 0.001


class Resumable(Protocol):
    """A held request, such as a long-polling pull."""

    def resume(self) -> None:
        """Respond to the request: the awaited event has occurred, or its deadline has passed."""


class Peer(Protocol):
    """The part of a connection's interface that the hub uses."""

    @property
    def peer(self) -> str:
        """Address and port of the peer."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that the peer had not read at the last count."""

    @property
    def open_requests(self) -> int:
        """Number of requests that wait to be handled, or of open calls."""

    def flush(self) -> None:
        """Write the collected responses."""

    def expire_calls(self, now_ns: int) -> int | None:
        """Fail the calls whose deadline has passed; return the next deadline (monotonic ns), if any."""

    def count_unread(self) -> None:
        """Update the count of unread bytes of this connection and the hub's total."""

    def check(self, now_ns: int) -> None:
        """Abort the connection if it has stalled for longer than the limit."""

    def discard_input(self) -> None:
        """Accept no further request."""

    def close(self, reason: str) -> None:
        """Write all collected responses, then close."""

    def abort(self, reason: str) -> None:
        """Close immediately."""

    def idle_ns(self, now_ns: int) -> int | None:
        """Return how long the peer has requested nothing (see `actors.ports.Guest`)."""

    def give_way(self) -> None:
        """Close immediately, without a log event."""


class Hub:
    """State that the connections of one server or one client share. Use it on one event loop only."""

    def __init__(
        self,
        clock: Clock,
        limits: RemotingLimits,
        tick: Callable[[], None] | None = None,
        account: MemoryAccount | None = None,
        *,
        is_server: bool = False,
    ) -> None:
        """Create the hub; `account` counts the memory that peers make the process keep.

        Unread bytes count in it only on a server: what a client has written is its own.
        """
        self.clock = clock
        self.limits = limits
        self.memory = ReceiveMemory()
        self.account = account or MemoryAccount(limits.max_kept_bytes)
        self.is_server = is_server
        self.connections: set[Peer] = set()
        self.leaving: set[Peer] = set()  # closed by this side, with output that the peer has not read yet
        self.scheduler = Scheduler(clock, limits)
        self.unread_bytes = 0  # of all peers that are behind, at the last count
        self.turns = 0
        """Number of turns since the start."""
        self.was_requested = False
        """True if `request_tick` requested the turn that is ending; False if received bytes began it."""
        self._tick = tick
        self._is_requested = False
        self._is_scheduled = False
        self._is_ending = False
        self.busy_poll = BusyPoll(clock, limits.busy_poll_us)
        self._dirty: list[Peer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._presser: asyncio.TimerHandle | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which the hub was first used."""
        return asyncio.get_running_loop()

    def enter(self, connection: Peer) -> None:
        """Register an opened connection; abort it if there are too many, of all peers or of its address."""
        limits, connections = self.limits, self.connections
        connections.add(connection)
        count = len(connections) + len(self.leaving)
        if count > limits.max_connections:
            connection.abort(f"over the limit of {limits.max_connections:,} connections (max_connections)")
            return
        limit = limits.max_connections_per_address
        if limit and count > limit and self._networks()[_network_of(connection.peer)] > limit:
            connection.abort(f"over the limit of {limit:,} connections (max_connections_per_address)")

    def bounds(self) -> tuple[Use, ...]:
        """Return the uses of bounds."""

        def of_one_network() -> int | None:
            return max(self._networks().values(), default=0) if per_address() else None

        def per_address() -> int:
            return self.limits.max_connections_per_address

        return (
            CONNECTIONS.use(
                lambda: len(self.connections) + len(self.leaving), lambda: self.limits.max_connections
            ),
            CONNECTIONS_PER_ADDRESS.use(of_one_network, per_address),
        )

    def _networks(self) -> Counter[str]:
        return Counter(_network_of(each.peer) for each in (*self.connections, *self.leaving))

    def end_with(self, tick: Callable[[], None]) -> None:
        """Call `tick` at the end of each turn."""
        self._tick = tick

    def request_tick(self) -> None:
        """Begin a turn whose tick has something to do, or let that of this turn know."""
        self._is_requested = True
        self.begin_turn()

    def begin_turn(self) -> bool:
        """Schedule the end-of-turn callback; begin a turn if none is running.

        Returns True if the callback was not scheduled yet. Call it on the event loop's thread only.
        """
        if self._is_scheduled:
            return False
        self._is_scheduled = True
        if not self._is_ending:
            self.scheduler.begin()
        self.loop.call_soon(self._end_turn)
        return True

    def mark_dirty(self, connection: Peer) -> None:
        """Flush this connection at the end of the turn."""
        self._dirty.append(connection)
        if not self._is_ending:  # else it is flushed in this turn
            self.begin_turn()

    def read_later(self, continue_reading: Work, *, is_new: bool) -> None:
        """Call `continue_reading` after the end of the turn.

        New connections are served before old ones (see `Scheduler`).
        """
        self.scheduler.add_cheap(continue_reading, is_new=is_new)
        self.begin_turn()

    def enqueue(self, work: Work) -> None:
        """Run one piece of costly work at the end of the turn."""
        self.scheduler.add_costly(work)
        if not self._is_ending:  # else it runs in this turn
            self.begin_turn()

    def resume(self, requests: Iterable[Resumable]) -> None:
        """Resume held requests at the end of the turn, together with the costly requests."""
        for request in requests:
            self.enqueue(request.resume)

    def change_limits(self, **changes: int) -> None:
        """Change limits of connections and memory.

        Limits of turns and receive buffers cannot be changed.
        """
        self.limits = replace(self.limits, **changes)
        self.account.limit_bytes = self.limits.max_kept_bytes

    def add_unread(self, size_bytes: int) -> None:
        """Add `size_bytes` to the total of unread bytes; negative after a peer has read."""
        self.unread_bytes += size_bytes

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in its own task, which `stop` cancels."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def arm(self, deadline_ns: int) -> None:
        """Schedule `expire_calls` for `deadline_ns` (monotonic) or soon after."""
        at_s = self.loop.time() + max(0, deadline_ns - self.clock.monotonic_ns()) / 1e9 + _TIMER_SLACK_S
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at_s, self._on_timer)

    def expire_calls(self) -> None:
        """Fail the calls of all connections whose deadline has passed, and schedule the next check."""
        now_ns = self.clock.monotonic_ns()
        deadlines_ns = [connection.expire_calls(now_ns) for connection in tuple(self.connections)]
        earliest_ns = min((each for each in deadlines_ns if each is not None), default=None)
        if earliest_ns is not None:
            self.arm(earliest_ns)

    def sweep(self) -> None:
        """Abort the stalled connections.

        These are idle, or have an incomplete frame or unread responses for longer than the limit.
        """
        now_ns = self.clock.monotonic_ns()
        for connection in (*self.connections, *self.leaving):
            connection.check(now_ns)

    def press(self) -> None:
        """Let stalled requests give way to those that wait for room, regularly until `stop`."""
        delay_s = on_beat_s(STALLED_MS / 1000, self.loop.time())
        self._presser = self.loop.call_later(delay_s, self.press)
        self.account.press()

    async def stop(self) -> None:
        """Write the collected responses, close all connections and cancel all tasks."""
        if self._presser is not None:
            self._presser.cancel()
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
        self.scheduler.collected_bytes = 0
        if self.unread_bytes > SHED_RATIO * self.limits.max_unread_bytes:
            self._shed()

    def _on_timer(self) -> None:
        self._timer = None
        self.expire_calls()

    def _end_turn(self) -> None:
        scheduler = self.scheduler
        self.turns += 1
        self.was_requested, self._is_requested = self._is_requested, False
        self._is_scheduled, self._is_ending = False, True
        scheduler.end_reading()
        try:
            self._respond_to_all()
        finally:
            scheduler.end()
            if scheduler.has_more or self._dirty:  # a connection may have more to write than fits a turn
                self.begin_turn()
            self._is_ending = False
            if self._is_scheduled:
                scheduler.serve_cheap()
            self.busy_poll.after_turn(self.loop)

    def _respond_to_all(self) -> None:
        """Run the tick, write responses, handle costly work, write again.

        The collected responses are written even if a step raises.
        """
        try:
            if self._tick is not None:
                self._tick()
        finally:
            try:
                self.flush()
                self.scheduler.serve_costly()
            finally:
                if self._dirty:
                    self.flush()

    def _shed(self) -> None:
        """Abort the connections with the most unread bytes until the total is within `max_unread_bytes`."""
        peers = [*self.connections, *self.leaving]
        for connection in peers:
            connection.count_unread()
        limit_bytes = self.limits.max_unread_bytes
        for connection in sorted(peers, key=lambda each: each.unread_bytes, reverse=True):
            if self.unread_bytes <= limit_bytes:
                return
            connection.abort(
                f"{connection.unread_bytes:,} bytes of responses unread, more than by any other peer; the "
                f"total of {self.unread_bytes:,} bytes exceeds max_unread_bytes {limit_bytes:,}"
            )


def _network_of(peer: str) -> str:
    """Return the IP address of a peer, or the network of an IPv6 address, of which one machine has all."""
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host
    return str(ipaddress.ip_network((host[1:-1].partition("%")[0], 64), strict=False))

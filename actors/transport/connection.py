"""Connection: one socket that carries frames in both directions.

This is the asyncio protocol object. `InputQueue` decodes requests and schedules their handling,
`OutputBuffer` collects responses and tracks how much the peer has not read, `Calls` matches responses of the
peer to requests. The states of a connection:

    open ── close() ──► closed, leaving: unread output remains ──► gone
      │                    │
      └── abort(), lost ───┴── abort(), lost ──► gone

When a connection stops being open, its calls fail with Closed and its close callbacks run.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from actors.memory_account import Share
from actors.ports import IN_USE_MS, NEVER_ASKED_NS
from actors.transport.calls import Callback, Calls, guarded
from actors.transport.hub import Hub
from actors.transport.input_queue import InputQueue
from actors.transport.output_buffer import OutputBuffer
from actors.transport.slices import Slices
from actors.wire.codes import FLAG_ONEWAY
from actors.wire.command import RemotingCommand
from actors.wire.frame import CodeMarks
from actors.wire.remoting_errors import Closed, ProtocolError, without_paths
from store.common.clock import NS_PER_MS
from store.common.logs import get_logger
from store.message.hosts import join_address

_log = get_logger(__name__)

CloseCallback = Callable[["Connection"], None]

_PORT: Final = struct.Struct(">i")


class RequestService(Protocol):
    """Handles the requests that arrive on a connection."""

    @property
    def costly_codes(self) -> CodeMarks:
        """Codes of costly requests, such as pulls (see `actors.transport.scheduler`)."""

    @property
    def taken_codes(self) -> CodeMarks:
        """Codes of requests of which `take` handles undecoded frames."""

    def take(self, connection: "Connection", data: bytearray, at: int, end: int) -> int:
        """Handle frames at the front of `data[at:end]`; return the position after the last one, or `at`."""

    def handle(self, connection: "Connection", command: RemotingCommand) -> None:
        """Handle one request; an exception becomes its error response."""


class ClientAttributes:
    """Client id, language and version that the peer has sent in its heartbeat."""

    __slots__ = ("client_id", "language", "version")

    def __init__(self) -> None:
        self.client_id: str | None = None
        self.language: str | None = None
        self.version = 0


class Connection(asyncio.BufferedProtocol):
    """A connection to one peer. Use it on its hub's event loop only.

    `peer` is `host:port`; `peer_bytes` is the same in the format of a record's bornHost: the address (4 or 16
    bytes), then the port as i32.
    """

    def __init__(self, hub: Hub, service: RequestService, address: str | None = None) -> None:
        self.hub = hub
        self.peer = address or "?"
        self.peer_bytes = b"\x00" * 8
        self.attributes = ClientAttributes()
        self.is_closed = False
        self.close_reason = "the peer closed the connection"
        self.pending = 0  # requests of the peer without a response yet
        self.is_proven = False  # True if the peer has proved that it knows the key of this side's requests
        self._transport: asyncio.Transport | None = None
        self._calls = Calls()
        self._output = OutputBuffer(hub)
        self._input = InputQueue(
            hub,
            self._output,
            service,
            partial(service.handle, self),
            partial(service.take, self),
            self._calls.take_response,
            self._refuse_bytes,
        )
        self._stalls = _Stalls()
        self._opened_ns = hub.clock.monotonic_ns()
        self._close_callbacks: list[CloseCallback] = []
        self.slices = Slices(hub)
        self.share: Share | None = None
        """What the connection makes this process keep; None for one within the process."""

    def __str__(self) -> str:
        return self.peer

    @property
    def local(self) -> str:
        """The socket address `host:port` of this end; empty without a socket."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return join_address(name[0], name[1]) if isinstance(name, tuple) else ""

    # ---- for services --------------------

    def send(self, command: RemotingCommand) -> None:
        """Encode the command now and write it at the end of the turn. Dropped if the connection is closed."""
        if self.is_closed:
            return
        if command.remark:
            command.remark = without_paths(command.remark)
        if self._output.is_empty:
            self.hub.mark_dirty(self)
        self._output.append(command)

    def send_frames(self, frames: bytes) -> None:
        """Write encoded frames at the end of the turn. Dropped if the connection is closed."""
        if self.is_closed:
            return
        if self._output.is_empty:
            self.hub.mark_dirty(self)
        self._output.append_frames(frames)

    def oneway(self, command: RemotingCommand) -> None:
        """Send a one-way request."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self._calls.next_opaque()
        self.send(command)

    def call(self, command: RemotingCommand, timeout_ms: int, callback: Callback) -> None:
        """Send a request; call `callback` exactly once, with the response or a RemotingError.

        The callback runs before this method returns only if the connection is already closed.
        """
        if self.is_closed:
            callback(Closed(self.peer, self.close_reason))
            return
        opaque = command.opaque = self._calls.next_opaque()
        now_ns = self.hub.clock.monotonic_ns()
        deadline_ns = now_ns + timeout_ms * NS_PER_MS
        self.send(command)
        if self._calls.add(opaque, callback, deadline_ns, now_ns):
            self.hub.arm(deadline_ns)

    def add_pending(self, count: int) -> None:
        """Add `count` to the number of requests without a response; negative for responses that were sent."""
        self.pending += count

    def close(self, reason: str) -> None:
        """Write all collected responses, then close. Later sends are dropped."""
        if self.is_closed:
            return
        self.close_reason = reason
        self.flush()
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self.hub.leaving.add(self)
        self._end()

    @property
    def open_requests(self) -> int:
        """Number of costly requests that wait to be handled."""
        return self._input.waiting

    def discard_input(self) -> None:
        """Accept no further request; send the responses to received requests."""
        self._input.stop()

    def reply_later(self, delay_ms: int, reply: Callable[[], None]) -> None:
        """Call `reply`, which sends a response, after a delay; handle no other request until then."""
        self._input.hold()

        def finish() -> None:
            reply()
            self._input.release()

        self.hub.loop.call_later(delay_ms / 1000, finish)

    def on_close(self, callback: CloseCallback) -> None:
        """Register a callback that runs once, when either side closes the connection."""
        if self.is_closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def when_drained(self, callback: CloseCallback) -> None:
        """Queue a callback among the costly requests of this connection; it runs when the output is not full.

        It never runs if the connection closes first.
        """
        if not self.is_closed:
            self._input.add_costly(partial(guarded, callback, self))

    @property
    def over_high_water(self) -> bool:
        """Whether this peer leaves too much unread or the output budget of the turn is used up.

        If so, no further responses should be produced.
        """
        hub = self.hub
        return self._output.is_over_high_water or hub.scheduler.collected_bytes > hub.limits.turn_output_bytes

    # ---- for the transport --------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the opened socket: register the connection, or abort if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        has_name = isinstance(name, tuple) and len(name) >= 2
        self.share = self.hub.account.share(name[0] if has_name else "", self._push_out)
        self._output.connection_made(self._transport, self.share)
        self._input.connection_made(self._transport, self.share)
        if has_name:
            host, port = name[0], name[1]
            self.peer = join_address(host, port)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.peer_bytes = socket.inet_pton(family, host.partition("%")[0]) + _PORT.pack(port)
        self.hub.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the closed socket: fail calls and release the buffers."""
        if exc is not None and not self.is_closed:
            self.close_reason = f"the connection was lost: {exc}"
        self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes of the socket."""
        return self._input.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` that the socket has written into the buffer."""
        self._input.received(nbytes)

    def pause_writing(self) -> None:
        """Mark the peer as behind: it reads more slowly than this side writes."""
        self._output.fall_behind()

    def resume_writing(self) -> None:
        """Resume requests that waited until the peer had read."""
        self._output.catch_up()
        self._input.resume()

    # ---- for the hub --------------------

    def flush(self) -> None:
        """Write the collected responses, and resume requests that waited for the output buffer."""
        if self._output.is_empty or self.is_closed:
            return
        self._output.flush()
        self._input.resume()

    @property
    def oldest_call_ns(self) -> int | None:
        """Monotonic time at which the oldest request without a response was sent; None if all have one."""
        return self._calls.oldest_ns

    def expire_calls(self, now_ns: int) -> int | None:
        """Fail the calls whose deadline has passed; return the next deadline (monotonic ns), if any."""
        return self._calls.expire(now_ns, self.peer)

    @property
    def unread_bytes(self) -> int:
        """Bytes that the peer had not read at the last count; 0 unless it is behind."""
        return self._output.unread_bytes

    def count_unread(self) -> None:
        """Update the count of unread bytes of this connection and the hub's total."""
        self._output.count_unread()

    def check(self, now_ns: int) -> None:
        """Abort a stalled connection.

        It is stalled if the peer has read nothing of the pending output for `unread_ms`, or if one frame is
        incomplete or no byte was transferred for `idle_ms`.
        """
        limits, output, frame = self.hub.limits, self._output, self._input.arriving_frame
        if output.is_behind or self.is_closed:
            output.count_unread()
            if self._stalls.unread.stalled_ms(output.taken_bytes, now_ns) >= limits.unread_ms:
                self.abort(
                    f"{self.unread_bytes:,} bytes of responses unread for {limits.unread_ms / 1000:.0f} s"
                )
        if self.is_closed:
            return
        moved = (self._input.received_bytes, output.written_bytes)
        if self.hub.account.waiting and self._input.place_age_ms(now_ns) >= limits.crowded_ms:
            self.abort(f"a frame is incomplete after {limits.crowded_ms / 1000:.0f} s, and others wait")
        elif self._stalls.frame.stalled_ms(frame, now_ns) >= limits.idle_ms and frame is not None:
            self.abort(f"one frame is incomplete after {limits.idle_ms / 1000:.0f} s")
        elif self._stalls.idle.stalled_ms(moved, now_ns) >= limits.idle_ms:
            self.abort(f"idle for {limits.idle_ms / 1000:.0f} s")

    def idle_ns(self, now_ns: int) -> int | None:
        """Return how long the peer has requested nothing (see `actors.ports.Guest`).

        None while a request is handled or its response is unread, and until a minute has passed since:
        clients send a heartbeat twice a minute.
        """
        output = self._output
        if self.pending or output.is_behind or not output.is_empty:
            return None
        if not output.written_bytes:
            return now_ns - self._opened_ns + NEVER_ASKED_NS
        moved = (self._input.received_bytes, output.written_bytes)
        idle_ms = self._stalls.idle.stalled_ms(moved, now_ns)
        return idle_ms * NS_PER_MS if idle_ms >= IN_USE_MS else None

    def abort(self, reason: str) -> None:
        """Close the socket immediately; drop unwritten responses."""
        if self.is_closed and self not in self.hub.leaving:
            return
        if not self.is_closed:
            self.close_reason = reason
        _log.info("connection_closed", peer=self.peer, reason=reason)
        self.give_way()

    def give_way(self) -> None:
        """Close the socket immediately, without a log event (see `actors.ports.Guest`)."""
        if self._transport is not None:
            self._transport.abort()
        self._leave()

    # ---- internal --------------------

    def _push_out(self, is_over: bool) -> bool:
        """Close the connection if its frame is incomplete, or its peer has stopped reading responses."""
        if self._input.push_out(is_over):
            return True
        if not self._output.has_stalled(self.hub.clock.monotonic_ns()):
            return False
        self.abort(f"{self.unread_bytes:,} bytes of responses unread, and others need the memory")
        return True

    def _refuse_bytes(self, error: ProtocolError) -> None:
        _log.warning("connection_refused", peer=self.peer, reason=error.reason, looks_like=error.looks_like)
        self.close(str(error))

    def _leave(self) -> None:
        """Release all resources after the socket was closed."""
        self._end()
        self._output.catch_up()
        self.hub.leaving.discard(self)
        if self.share is not None:
            self.share.close()

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._output.clear()
        self._input.close()
        self.hub.connections.discard(self)
        self._calls.fail_all(Closed(self.peer, self.close_reason))
        callbacks, self._close_callbacks = self._close_callbacks, []
        for on_close in callbacks:
            on_close(self)


class _Stalls:
    """How long the peer has read nothing, a frame is incomplete, and no byte was transferred."""

    __slots__ = ("frame", "idle", "unread")

    def __init__(self) -> None:
        self.unread, self.frame, self.idle = _StallTimer(), _StallTimer(), _StallTimer()


class _StallTimer:
    """Measures how long an observed value has not changed."""

    __slots__ = ("_since_ns", "_value")

    def __init__(self) -> None:
        self._value: object = None
        self._since_ns = 0

    def stalled_ms(self, value: object, now_ns: int) -> int:
        """Record `value`; return the milliseconds since it last changed."""
        if value != self._value:
            self._value, self._since_ns = value, now_ns
        return (now_ns - self._since_ns) // NS_PER_MS

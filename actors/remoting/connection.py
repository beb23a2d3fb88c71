"""Connection: one socket that carries frames both ways.

This is the protocol object of asyncio. It divides the work: `InputQueue` decodes requests and hands them over
in their turn, `OutputBuffer` collects responses and knows how far the peer is behind, `Calls` matches the
responses of the peer. The states of a connection:

    open ── close() ──► closed, leaving: the peer still has to read ──► gone
      │                    │
      └── abort(), lost ───┴── abort(), lost ──► gone

The close callbacks run and the calls fail on the way from open to closed.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from actors.remoting.calls import Callback, Calls, guarded
from actors.remoting.codes import FLAG_ONEWAY
from actors.remoting.command import RemotingCommand
from actors.remoting.frame import CodeMarks
from actors.remoting.hub import Hub
from actors.remoting.input_queue import InputQueue
from actors.remoting.output_buffer import OutputBuffer
from actors.remoting.remoting_errors import Closed, ProtocolError
from store.clock import NS_PER_MS
from store.logs import get_logger

_log = get_logger(__name__)

CloseCallback = Callable[["Connection"], None]

_PORT: Final = struct.Struct(">i")


class Service(Protocol):
    """Handles the requests of a peer."""

    @property
    def costly_codes(self) -> CodeMarks:
        """Codes of costly requests (`actors.remoting.turn`)."""
        ...

    def handle(self, connection: "Connection", command: RemotingCommand) -> None:
        """Handle one request; an error becomes its response."""
        ...


class ClientAttributes:
    """What the peer has reported in its heartbeat."""

    __slots__ = ("client_id", "language", "version")

    def __init__(self) -> None:
        self.client_id: str | None = None
        self.language: str | None = None
        self.version = 0


class Connection(asyncio.BufferedProtocol):
    """A connection to one peer. Used on its hub's loop only.

    `peer` is `host:port`; `peer_bytes` is the same as a record's bornHost (address, 4 or 16 bytes, then the
    port as i32).
    """

    def __init__(self, hub: Hub, service: Service, address: str | None = None) -> None:
        self.hub = hub
        self.peer = address or "?"
        self.peer_bytes = b"\x00" * 8
        self.attributes = ClientAttributes()
        self.is_closed = False
        self.close_reason = "the peer closed the connection"
        self.pending = 0  # requests of the peer without a response yet
        self._transport: asyncio.Transport | None = None
        self._calls = Calls()
        self._output = OutputBuffer(hub)
        self._input = InputQueue(
            hub,
            self._output,
            service.costly_codes,
            partial(service.handle, self),
            self._calls.take_response,
            self._refuse_bytes,
        )
        self._unread_timer, self._frame_timer, self._idle_timer = _StallTimer(), _StallTimer(), _StallTimer()
        self._close_callbacks: list[CloseCallback] = []

    # ---- for services --------------------

    def send(self, command: RemotingCommand) -> None:
        """Encode the command now and write it at the end of the turn; dropped if the connection is closed."""
        if self.is_closed:
            return
        if self._output.is_empty:
            self.hub.mark_dirty(self)
        self._output.append(command)

    def oneway(self, command: RemotingCommand) -> None:
        """Send a request without a response."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self._calls.next_opaque()
        self.send(command)

    def call(self, command: RemotingCommand, timeout_ms: int, callback: Callback) -> None:
        """Send a request; the callback gets the response or a RemotingError exactly once, and never before
        this returns unless the connection is closed already.
        """
        if self.is_closed:
            callback(Closed(self.peer, self.close_reason))
            return
        opaque = command.opaque = self._calls.next_opaque()
        deadline_ns = self.hub.clock.monotonic_ns() + timeout_ms * NS_PER_MS
        self.send(command)
        if self._calls.add(opaque, callback, deadline_ns):
            self.hub.arm(deadline_ns)

    def add_pending(self, count: int) -> None:
        """Count requests that wait for their response; negative when they have got it."""
        self.pending += count

    def close(self, reason: str) -> None:
        """Write what is collected, then close; later sends are dropped."""
        if self.is_closed:
            return
        self.close_reason = reason
        self.flush()
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self.hub.leaving.add(self)
        self._end()

    def discard_input(self) -> None:
        """Take no further request; those that have been received are still answered."""
        self._input.stop()

    def on_close(self, callback: CloseCallback) -> None:
        """Call this once when the connection is closed, by either side."""
        if self.is_closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def when_drained(self, callback: CloseCallback) -> None:
        """Call this in turn with the costly requests, once the output is not full; never if the connection
        closes before.
        """
        if not self.is_closed:
            self._input.add_costly(partial(guarded, callback, self))

    @property
    def over_high_water(self) -> bool:
        """Whether no further responses should be produced, because of this connection or of all together."""
        hub = self.hub
        return self._output.is_over_high_water or hub.turn.collected_bytes > hub.limits.turn_output_bytes

    # ---- for the transport --------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: the socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._output.connection_made(self._transport)
        self._input.connection_made(self._transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            host, port = name[0], name[1]
            self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.peer_bytes = socket.inet_pton(family, host.partition("%")[0]) + _PORT.pack(port)
        hub = self.hub
        hub.connections.add(self)
        if len(hub.connections) + len(hub.leaving) > hub.limits.max_connections:
            self.abort(f"over the limit of {hub.limits.max_connections:,} connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the socket is gone."""
        if exc is not None and not self.is_closed:
            self.close_reason = f"the connection broke: {exc}"
        self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes of the socket."""
        return self._input.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that the socket has delivered."""
        self._input.received(nbytes)

    def pause_writing(self) -> None:
        """Note that the peer does not read as fast as this side writes."""
        self._output.fall_behind()

    def resume_writing(self) -> None:
        """Resume what waited for the peer to read."""
        self._output.catch_up()
        self._input.resume()

    # ---- for the hub --------------------

    def flush(self) -> None:
        """Write what is collected, and resume what waited for that."""
        if self._output.is_empty or self.is_closed:
            return
        self._output.flush()
        self._input.resume()

    def expire_calls(self, now_ns: int) -> int | None:
        """Fail the calls whose deadline has passed; return the next deadline, if any."""
        return self._calls.expire(now_ns, self.peer)

    @property
    def unread_bytes(self) -> int:
        """Bytes that a peer that is behind had not read when they were last counted."""
        return self._output.unread_bytes

    def count_unread(self) -> None:
        """Count what the peer has not read, here and in the hub's sum."""
        self._output.count_unread()

    def check(self, now_ns: int) -> None:
        """Abort if the peer has read nothing, or nothing has moved, or one frame has been arriving for longer
        than the limit.
        """
        limits, output, frame = self.hub.limits, self._output, self._input.arriving_frame
        if output.is_behind or self.is_closed:
            output.count_unread()
            if self._unread_timer.stalled_ms(output.taken_bytes, now_ns) >= limits.unread_ms:
                self.abort(
                    f"{self.unread_bytes:,} bytes of answers unread for {limits.unread_ms / 1000:.0f} s"
                )
        if self.is_closed:
            return
        moved = (self._input.received_bytes, output.written_bytes)
        if self._frame_timer.stalled_ms(frame, now_ns) >= limits.idle_ms and frame is not None:
            self.abort(f"one frame has been arriving for {limits.idle_ms / 1000:.0f} s")
        elif self._idle_timer.stalled_ms(moved, now_ns) >= limits.idle_ms:
            self.abort(f"idle for {limits.idle_ms / 1000:.0f} s")

    def abort(self, reason: str) -> None:
        """Close the socket at once; what is not written is dropped."""
        if self.is_closed and self not in self.hub.leaving:
            return
        if not self.is_closed:
            self.close_reason = reason
        _log.info("connection_closed", peer=self.peer, reason=reason)
        if self._transport is not None:
            self._transport.abort()
        self._leave()

    # ---- its own --------------------

    def _refuse_bytes(self, error: ProtocolError) -> None:
        _log.warning("connection_refused", peer=self.peer, reason=error.reason, looks_like=error.looks_like)
        self.close(str(error))

    def _leave(self) -> None:
        """Release everything: the socket is gone."""
        self._end()
        self._output.catch_up()
        self.hub.leaving.discard(self)

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


class _StallTimer:
    """Measures how long a value has been the same, from one call to the next."""

    __slots__ = ("_since_ns", "_value")

    def __init__(self) -> None:
        self._value: object = None
        self._since_ns = 0

    def stalled_ms(self, value: object, now_ns: int) -> int:
        """Return for how long `value` has not changed."""
        if value != self._value:
            self._value, self._since_ns = value, now_ns
        return (now_ns - self._since_ns) // NS_PER_MS

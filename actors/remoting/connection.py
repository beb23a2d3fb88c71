"""Connection: one socket that carries frames both ways."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from actors.remoting.calls import Callback, Calls, guarded
from actors.remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE
from actors.remoting.command import Buffer, RemotingCommand, append_command
from actors.remoting.frame import CodeMarks, FrameReader
from actors.remoting.hub import Hub
from actors.remoting.remoting_errors import Closed, ProtocolError
from store.logs import get_logger

_log = get_logger(__name__)

CloseCallback = Callable[["Connection"], None]

# Up to here one write of joined bytes is cheaper than a write of many buffers.
_JOIN_BYTES: Final = 64 * 1024
_LARGE_PART_BYTES: Final = 8 * 1024
# A peer that leaves this much unread is behind: how much it leaves is watched from here on.
_BEHIND_BYTES: Final = 64 * 1024
# A peer whose bytes come when the turn is over can wait: what it sends is left with the kernel, nearly all.
_LATE_READ_BYTES: Final = 16 * 1024
# Requests that others need not wait for are left as they have come, up to here.
_ASIDE_BYTES: Final = 16 * 1024
# So many requests of one peer between two looks at the clock.
_REQUESTS_A_LOOK: Final = 4
_NS_PER_MS: Final = 1_000_000
_PORT: Final = struct.Struct(">i")


class Service(Protocol):
    """What answers the requests of a peer."""

    @property
    def costly_codes(self) -> CodeMarks:
        """Codes of requests that stand in line (`actors.remoting.turn`)."""
        ...

    def handle(self, connection: "Connection", command: RemotingCommand) -> None:
        """Take one request; whatever goes wrong in it becomes its answer."""
        ...


class ClientAttributes:
    """What the peer has told about itself in its heartbeat; `extra` is the service's own."""

    __slots__ = ("client_id", "extra", "language", "version")

    def __init__(self) -> None:
        self.client_id: str | None = None
        self.language: str | None = None
        self.version = 0
        self.extra: dict[str, Any] = {}


class Connection(asyncio.BufferedProtocol):
    """One peer. Used on its hub's loop only.

    `peer` is `host:port`; `peer_bytes` the same as a record's bornHost (ip, 4 or 16 bytes, then the port as
    i32).
    """

    def __init__(self, hub: Hub, service: Service, address: str | None = None) -> None:
        self.hub = hub
        self.peer = address or "?"
        self.peer_bytes = b"\x00" * 8
        self.attributes = ClientAttributes()
        self.is_closed = False
        self.close_reason = "the peer closed the connection"
        self.is_queued = False  # to be read on in the next turn
        self.is_in_line = False  # with costly requests
        self.unread_bytes = 0  # what a peer that is behind has not taken, when that was noted last
        self.pending = 0  # requests of the peer that have no answer yet
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(hub.memory)
        self._turn = hub.turn
        self._handle = service.handle
        self._costly_codes = service.costly_codes
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._turn_bytes = 0
        self._is_behind = False
        self._unread_since_ns = 0
        self._waiting: list[RemotingCommand | CloseCallback] = []  # costly requests, and parts of such
        self._is_set_aside = False  # what comes after those: it is read when its turn in line comes
        self._is_held = False
        self._is_hushed = False
        self._was_active = True
        self._quiet_since_ns = 0
        self._partial_since_ns = 0
        self._partial_frames = -1
        self._calls = Calls()
        self._close_callbacks: list[CloseCallback] = []

    # ---- what services use --------------------

    def send(self, command: RemotingCommand) -> None:
        """Encode the command now and write it at the turn's end; dropped where the connection has ended."""
        if self.is_closed:
            return
        out = self._out
        if not out:
            self.hub.mark_dirty(self)
        size_bytes = append_command(out, command)
        self._out_bytes += size_bytes
        self._turn.collected_bytes += size_bytes

    def oneway(self, command: RemotingCommand) -> None:
        """Send a request that wants no answer."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self._calls.next_opaque()
        self.send(command)

    def call(self, command: RemotingCommand, timeout_ms: int, callback: Callback) -> None:
        """Send a request; the callback gets the answer, or a RemotingError, exactly once and never before
        this returns (except where the connection has ended already).
        """
        if self.is_closed:
            callback(Closed(self.peer, self.close_reason))
            return
        opaque = command.opaque = self._calls.next_opaque()
        hub = self.hub
        deadline_ns = hub.clock.monotonic_ns() + timeout_ms * _NS_PER_MS
        self.send(command)
        if self._calls.add(opaque, callback, deadline_ns):
            hub.arm(deadline_ns)

    def close(self, reason: str) -> None:
        """Write what is waiting, then close; later sends are dropped."""
        if self.is_closed:
            return
        self.close_reason = reason
        self.flush()
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._unread_since_ns = self.hub.clock.monotonic_ns()
                self.hub.leaving.add(self)
        self._end()

    def hush(self) -> None:
        """Take nothing from the peer but what has come. What it still sends is dropped, not left unread:
        closing a socket with bytes unread would reset it, and the peer could lose answers on their way.
        """
        self._is_hushed = True

    def on_close(self, callback: CloseCallback) -> None:
        """Run this once when the connection has ended, whoever ended it."""
        if self.is_closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def when_drained(self, callback: CloseCallback) -> None:
        """Run this as a costly request, when the connection is not over the mark; never where it has
        ended.
        """
        if not self.is_closed:
            self._waiting.append(callback)
            self.hub.line_up(self)

    @property
    def over_high_water(self) -> bool:
        """Whether so much is waiting to be written, here or of all, that no further answers should be
        produced.
        """
        return self._is_over_mark or self._turn.collected_bytes > self.hub.limits.turn_output_bytes

    @property
    def _is_over_mark(self) -> bool:
        waiting_bytes = self._out_bytes
        if self._is_behind and self._transport is not None:
            waiting_bytes += self._transport.get_write_buffer_size()
        return waiting_bytes > self.hub.limits.high_water_bytes

    @property
    def has_answered_enough(self) -> bool:
        """Whether what has collected is to be written before more is produced: it may be left unread."""
        if self._out_bytes <= _BEHIND_BYTES:
            return False
        limits = self.hub.limits
        waiting_bytes = self.hub.unread_bytes + self._turn.collected_bytes
        return self._out_bytes > limits.high_water_bytes or waiting_bytes > limits.max_unread_bytes

    @property
    def _is_far_behind(self) -> bool:
        """Whether nothing more is read of a peer that is behind: by its own measure, or by that of all."""
        return self._is_over_mark or self.hub.unread_bytes > self.hub.limits.max_unread_bytes

    @property
    def _has_costly(self) -> bool:
        """Whether there is something for its turn in line."""
        return bool(self._waiting) or self._is_set_aside

    @property
    def _has_many_waiting(self) -> bool:
        """Whether nothing more is read, for as long as costly requests are to be done."""
        return 2 * len(self._waiting) > self.hub.limits.costly_requests_max

    # ---- what the transport calls --------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=min(_BEHIND_BYTES, self.hub.limits.high_water_bytes))
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
        """The socket is gone."""
        if exc is not None and not self.is_closed:
            self.close_reason = f"the connection broke: {exc}"
        self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport is to put what it receives."""
        room = self._reader.get_buffer()
        return room[:_LATE_READ_BYTES] if self._turn.is_over else room

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        if self._is_hushed:
            return
        self._was_active = True
        self._turn_bytes += nbytes
        reader = self._reader
        reader.received(nbytes)
        hub = self.hub
        begins = not hub.tick_requested
        if begins:
            hub.request_tick()
        if reader.unread_bytes <= _ASIDE_BYTES and reader.has_only(self._costly_codes):
            reader.set_aside()
            self._is_set_aside = True
            hub.line_up(self)
            return
        if not begins and self._turn.is_spent():
            reader.set_aside()
            self._hold(is_late=True)
            return
        self._is_set_aside = False
        self._read_commands(hub.limits.input_budget_requests)
        if self._turn_bytes > hub.limits.input_budget_bytes and not self._is_held:
            self._hold()

    def pause_writing(self) -> None:
        """The peer does not read as fast as we answer."""
        self._is_behind = True
        self._unread_since_ns = self.hub.clock.monotonic_ns()
        self.note_unread()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._is_behind = False
        self.note_unread()
        if self._is_held:
            self.hub.hold(self)
        if self._has_costly:
            self.hub.line_up(self)

    # ---- what the hub calls --------------------

    def flush(self) -> None:
        """Write what has collected, in one go."""
        out = self._out
        if not out:
            return
        transport = self._transport
        if transport is not None and not self.is_closed:
            self._was_active = True
            if self._out_bytes <= _JOIN_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(_coalesced(out))
            if self._is_behind:
                self.note_unread()
        self._out = []
        self._out_bytes = 0

    def go_on(self, requests_max: int) -> None:
        """A new turn: read on, unless the peer leaves our answers unread, or too many of its requests stand
        in line: then `resume_writing` sees to it, or `serve_costly`.
        """
        self._turn_bytes = 0
        if self.is_closed or self._is_hushed or not self._is_held:
            return
        if (self._is_behind and self._is_far_behind) or self._has_many_waiting:
            return
        self._is_held = False
        self._reader.resume()
        self._read_commands(requests_max)
        if not self._is_held and self._transport is not None and not self.is_closed:
            self._transport.resume_reading()

    def serve_costly(self) -> bool:
        """Do the first of the costly requests, or read some of those that are set aside; whether there are
        more to be done. Nothing is done where the peer leaves our answers unread: `resume_writing` lines up
        again.
        """
        if self._is_behind and self._is_far_behind:
            return False
        if self._waiting:
            work = self._waiting.pop(0)
            if isinstance(work, RemotingCommand):
                self._handle(self, work)
            else:
                guarded(work, self)
            if self._is_held and not self._has_many_waiting:
                self.hub.hold(self)
        elif self._is_set_aside:
            self._is_set_aside = False
            self._reader.resume()
            self._read_commands(_REQUESTS_A_LOOK, in_line=True)
        return self._has_costly

    def expire_calls(self, now_ns: int) -> int | None:
        """Fail the calls whose deadline has passed; returns the next deadline, or None where no call is
        waiting.
        """
        return self._calls.expire(now_ns, self.peer)

    def note_unread(self) -> None:
        """Note how much a peer that is behind has not taken, here and in the sum of all."""
        unread_bytes = 0
        if self._is_behind and self._transport is not None:
            unread_bytes = self._transport.get_write_buffer_size()
        self.hub.unread_bytes += unread_bytes - self.unread_bytes
        self.unread_bytes = unread_bytes

    def check_unread(self, now_ns: int, unread_ns: int) -> None:
        """Close when the peer has been behind, or we have been waiting to close, for so long, and it has not
        taken a byte.
        """
        if not self._is_behind and not self.is_closed:
            return
        before_bytes = self.unread_bytes
        self.note_unread()
        if self.unread_bytes < before_bytes:
            self._unread_since_ns = now_ns
        elif now_ns - self._unread_since_ns >= unread_ns:
            self.abort(f"{self.unread_bytes:,} bytes of answers unread for {unread_ns / 1e9:.0f} s")

    def check_idle(self, now_ns: int, idle_ns: int) -> None:
        """Close when nothing has moved, or one frame has been arriving, for so long."""
        if self._reader.has_partial and not (self._is_held or self._is_set_aside):
            if self._partial_frames != self._reader.frames:
                self._partial_frames = self._reader.frames
                self._partial_since_ns = now_ns
            elif now_ns - self._partial_since_ns >= idle_ns:
                self.abort(f"one frame has been arriving for {idle_ns / 1e9:.0f} s")
                return
        else:
            self._partial_frames = -1
        if self._was_active:
            self._was_active = False
            self._quiet_since_ns = now_ns
        elif now_ns - self._quiet_since_ns >= idle_ns:
            self.abort(f"idle for {idle_ns / 1e9:.0f} s")

    def abort(self, reason: str) -> None:
        """End the connection at once; what is waiting to be written is dropped."""
        if self.is_closed and self not in self.hub.leaving:
            return
        if not self.is_closed:
            self.close_reason = reason
        _log.info("connection_ended", peer=self.peer, reason=reason)
        if self._transport is not None:
            self._transport.abort()
        self._leave()

    # ---- its own --------------------

    def _read_commands(self, left: int, *, in_line: bool = False) -> None:
        reader = self._reader
        costly_codes = self._costly_codes
        began_ns = self._turn.now_ns()
        has_cheap = False
        try:
            while (command := reader.next_command()) is not None:
                if command.flag & FLAG_RESPONSE:
                    self._calls.take_answer(command)
                elif command.code in costly_codes and not command.body:  # which would be kept meanwhile
                    self._waiting.append(command)
                    if len(self._waiting) >= self.hub.limits.costly_requests_max:
                        left = 1
                else:
                    has_cheap = True
                    self._handle(self, command)
                left -= 1
                if (
                    not left
                    or (not left % _REQUESTS_A_LOOK and self._turn.is_spent())
                    or (self._out_bytes > _BEHIND_BYTES and self.has_answered_enough)
                    or (self._is_behind and self._is_far_behind)
                    or self.is_closed
                ):
                    reader.set_aside()
                    if in_line:
                        self._is_set_aside = reader.has_partial
                    else:
                        self._hold()
                    break
        except ProtocolError as error:
            _log.warning(
                "connection_refused", peer=self.peer, reason=error.reason, looks_like=error.looks_like
            )
            self.close(str(error))
        if has_cheap:
            self._turn.took_cheap(began_ns)
        if self._waiting:
            self.hub.line_up(self)

    def _hold(self, *, is_late: bool = False) -> None:
        if not self._is_held and self._transport is not None and not self.is_closed:
            self._is_held = True
            self._transport.pause_reading()
            self.hub.hold(self, is_late=is_late)

    def _leave(self) -> None:
        """The socket is gone, and what it held."""
        self._end()
        self._is_behind = False
        self.note_unread()
        self.hub.leaving.discard(self)

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._out = []
        self._out_bytes = 0
        self._waiting = []
        self._is_set_aside = False
        self._reader.close()
        self.hub.connections.discard(self)
        self._calls.fail_all(Closed(self.peer, self.close_reason))
        callbacks, self._close_callbacks = self._close_callbacks, []
        for on_close in callbacks:
            on_close(self)


def _coalesced(parts: list[Buffer]) -> list[Buffer]:
    """Small neighbours joined, large ones left where they lie."""
    merged: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _LARGE_PART_BYTES:
            small.append(part)
            continue
        if small:
            merged.append(b"".join(small))
            small = []
        merged.append(part)
    if small:
        merged.append(b"".join(small))
    return merged

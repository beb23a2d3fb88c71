"""GrpcConnection: one HTTP/2 connection with the calls on its streams.

    bytes ──► engine ──► headers ──► Call and its task     call.send ──► unsent ──► engine ──► one write
                 └──► data, end, reset, windows              (as far as the windows allow)    per turn

Every stream ends with a status in its trailers. The streams, the size of headers and messages, and the frames
without data are bounded. All that a peer makes this side keep counts in an account (`actors.memory_account`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Final, cast

from actors.gateway.grpc.calls import Call, Method
from actors.gateway.grpc.decoder import Decoder, LongWork
from actors.gateway.grpc.engine import (
    FRAME_BYTES_MAX,
    Engine,
    EngineFailed,
    EngineLimits,
    StreamGone,
    go_away,
)
from actors.gateway.grpc.headers import CONTENT_TYPE, check_headers, joined
from actors.gateway.grpc.intake import FREE_BYTES, Intake
from actors.gateway.grpc.limits import GrpcLimits
from actors.gateway.grpc.messages import MessageReader
from actors.gateway.grpc.status import CallFailed, StatusCode, decode_timeout_ns, encode_status_text
from actors.memory_account import STALLED_MS, MemoryAccount, Share
from actors.ports import IN_USE_MS, NEVER_ASKED_NS
from actors.transport.hub import Hub
from actors.wire.frame import describe_bytes
from actors.wire.remoting_errors import without_paths
from store.common.clock import NS_PER_MS
from store.common.logs import get_logger

_log = get_logger(__name__)

_HEADERS: Final = ((b":status", b"200"), (b"content-type", CONTENT_TYPE.encode()))
_PREFACE: Final = b"PRI * HTTP/2"
_READ_BYTES: Final = 64 * 1024
_COLLECTED_MAX: Final = 256 * 1024
_UNWRITTEN_MAX: Final = 1024 * 1024
_PUSHED_OUT: Final = 1 / 8
_FREE_CALLS: Final = 16
"""Open calls of a connection that do not count, with requests of up to `FREE_BYTES`."""


class _ErrorCode(IntEnum):
    """Reasons in GOAWAY frames."""

    NO_ERROR = 0
    ENHANCE_YOUR_CALM = 11


class _Life(IntEnum):
    """How far a connection is; it only goes forward."""

    OPEN = 0
    DRAINING = 1
    """The peer was sent GOAWAY and opens another connection; closed when the open calls have ended."""
    CLOSED = 2
    """There is no call, and input is dropped; the peer may still have output to read."""


class GrpcConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted connection."""

    def __init__(
        self,
        hub: Hub,
        methods: Mapping[str, Method],
        limits: GrpcLimits,
        account: MemoryAccount,
        long_work: LongWork,
    ) -> None:
        """Create the protocol; `methods` are the served ones, by path."""
        self.peer = "?"
        self._hub = hub
        self._methods = methods
        self._limits = limits
        self._account = account
        self._share: Share
        self._decoder = Decoder(long_work)
        self._calls: dict[int, Call] = {}
        self._transport: asyncio.Transport
        self._is_blocked = False
        self._collected_bytes = 0  # data since the last write
        self.unread_bytes = 0  # responses of all calls that the peer's windows do not allow yet
        self._output_bytes = 0  # of them and of the socket buffer, as counted in the account
        self._has_more = False  # unsent data that the windows allow
        self._is_dirty = False
        self._life = _Life.OPEN
        self._control_frames = 0
        self._opened_ns = self._active_ns = hub.clock.monotonic_ns()
        self._has_called = False
        self._failure = ""
        self._engine = Engine(
            self,
            EngineLimits(
                limits.streams_max,
                limits.header_bytes_max,
                limits.window_bytes,
                limits.control_frames_max,
            ),
        )

    # ---- for the transport --------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and send the server's settings."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        self._share = self._account.share(self.peer.rpartition(":")[0].strip("[]"), self._push_out)
        self._hub.enter(self)
        if not self._transport.is_closing():
            self._mark_dirty()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes of the socket."""
        return self._hub.memory.view[:_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        if self._life is _Life.CLOSED:
            return
        data = bytes(self._hub.memory.view[:nbytes])
        self._active_ns = self._hub.clock.monotonic_ns()
        try:
            self._engine.receive(data)
        except EngineFailed as error:
            self._refuse(data, error)
            return
        self._mark_dirty()

    def pause_writing(self) -> None:
        """Send no further data: the peer reads too slowly."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """Continue to send data."""
        self._is_blocked = False
        self._drain_all()
        self._count_output()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._leave()
        self._hub.leaving.discard(self)
        self._share.close()
        self._engine.close()

    # ---- for the calls --------------------

    def write(self, call: Call, data: bytes) -> None:
        """Send data of the call's stream as far as the peer's windows allow, and keep the rest."""
        if call.trailers is None and call.stream_id in self._calls:
            had_unsent = bool(call.unsent)
            self._has_called = True
            call.unsent += data
            self.unread_bytes += len(data)
            self._drain(call)
            if call.unsent:
                if not had_unsent:
                    call.waits_since_ns = self._hub.clock.monotonic_ns()
                self._count_output()

    # ---- for the hub --------------------

    @property
    def open_requests(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    def check(self, now_ns: int) -> None:
        """Fail the incomplete requests that are overdue; close the connection if it is idle or stalled."""
        self._control_frames = 0
        limits, of_calls = self._hub.limits, self._limits
        crowded_ms = of_calls.crowded_timeout_ms if self._account.waiting else None
        for call in tuple(self._calls.values()):
            if call.is_overdue(now_ns, of_calls.request_timeout_ms, crowded_ms):
                self._finish(call, StatusCode.DEADLINE_EXCEEDED, "the request is incomplete")
        quiet_ns = now_ns - self._active_ns
        if self._is_blocked and quiet_ns >= limits.unread_ms * NS_PER_MS:
            self.abort(f"the peer has read no byte for {limits.unread_ms / 1000:g} s")
        elif not self._calls and quiet_ns >= limits.idle_ms * NS_PER_MS:
            self.close("idle")

    def idle_ns(self, now_ns: int) -> int | None:
        """Return how long the peer has made no call (see `Guest`); SDKs send heartbeats every 10 s."""
        if any(call.intake.is_handling or call.intake for call in self._calls.values()):
            return None
        quiet_ns = now_ns - (self._active_ns if self._has_called else self._opened_ns - NEVER_ASKED_NS)
        return quiet_ns if quiet_ns >= IN_USE_MS * NS_PER_MS else None

    def flush(self) -> None:
        """Write the collected output."""
        self._is_dirty = False
        if self._transport.is_closing():
            return
        data = self._engine.output()
        if self._failure:
            self._end(self._failure, data)
            return
        if data:
            self._transport.write(data)
        self._collected_bytes = 0
        self._count_output()
        if self._transport.get_write_buffer_size() > _UNWRITTEN_MAX:
            self.abort("the peer reads no responses to its control frames")
        elif self._life is _Life.DRAINING and not self._calls:
            self.close("drained")
        elif self._has_more and not self._is_blocked:
            self._has_more = False
            self._drain_all()

    def close(self, reason: str) -> None:
        """Tell the peer that no further call is accepted, and close."""
        if self._life is not _Life.CLOSED:
            self._leave()
            if not self._transport.is_closing():
                self._write_last(self._engine.output() + go_away(_ErrorCode.NO_ERROR))

    def abort(self, reason: str) -> None:
        """Close the socket immediately and log the reason."""
        _log.info("connection_closed", peer=self.peer, reason=reason)
        self.give_way()

    def give_way(self) -> None:
        """Close the socket immediately, without a log event."""
        self._leave()
        self._transport.abort()

    def discard_input(self) -> None:
        """Tell the peer to open another connection; close when the open calls have ended."""
        if self._life is _Life.OPEN:
            self._life = _Life.DRAINING
            self._transport.write(self._engine.output() + go_away(_ErrorCode.NO_ERROR))
            self._mark_dirty()

    def expire_calls(self, now_ns: int) -> int | None:
        """Return None: calls have timers of their own."""
        return None

    def count_unread(self) -> None:
        """Do nothing: each write counts."""

    # ---- for the engine --------------------

    def begin(self, stream_id: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin a call."""
        if self._life is not _Life.CLOSED:
            self._begin(stream_id, joined(headers))

    def received(self, stream_id: int, data: bytes) -> bool:
        """Pass data to its call; return False if it has ended."""
        call = self._calls.get(stream_id)
        if call is None or call.trailers is not None:
            return False
        try:
            call.arrived(data, self._active_ns)
        except CallFailed as error:
            self._finish(call, error.code, error.message)
        if call.task is None and call.intake:
            self._start(call)
        return True

    def ended(self, stream_id: int) -> None:
        """Note the end of a call's requests."""
        call = self._calls.get(stream_id)
        if call is not None:
            call.intake.end()
            if call.task is None:
                self._start(call)

    def reset(self, stream_id: int) -> None:
        """Cancel a call."""
        call = self._calls.get(stream_id)
        if call is not None:
            self._forget(call)

    def window(self, stream_id: int) -> None:
        """Continue to send."""
        if not stream_id:
            self._drain_all()
        elif (call := self._calls.get(stream_id)) is not None and call.unsent:
            self._drain(call)

    def count_control(self) -> None:
        """Close the connection after too many frames without data."""
        self._control_frames += 1
        if self._control_frames > self._limits.control_frames_max and self._life is not _Life.CLOSED:
            self._terminate("too many frames without data")

    def going_away(self) -> None:
        """Close the connection when its calls have ended."""
        self.discard_input()

    def failed(self, reason: str) -> None:
        """Close the connection after the output in progress."""
        self._failure = reason

    def _begin(self, stream_id: int, headers: Mapping[str, str]) -> None:
        method = self._methods.get(headers.get(":path", ""))
        encoding = headers.get("grpc-encoding", "identity")
        reader = MessageReader(encoding, self._limits.message_bytes_max)
        acknowledge = partial(self._acknowledge, stream_id)
        is_counted = len(self._calls) >= _FREE_CALLS
        intake = Intake(
            reader, self._share, acknowledge, self._limits.window_bytes, 0 if is_counted else FREE_BYTES
        )
        call = Call(
            method or _UNKNOWN, headers, self.peer, stream_id, self, intake, self._decoder, self._share,
            self._active_ns, is_counted=is_counted,
        )  # fmt: skip
        self._calls[stream_id] = call
        try:
            check_headers(headers, method)
            timeout = headers.get("grpc-timeout")
            timeout_ns = None if timeout is None else decode_timeout_ns(timeout)
        except CallFailed as error:
            self._finish(call, error.code, error.message)
            return
        if timeout_ns is not None:
            expire = partial(
                self._finish, call, StatusCode.DEADLINE_EXCEEDED, f"no response within {timeout}"
            )
            call.deadline = self._hub.loop.call_later(timeout_ns / 1e9, expire)
        if call.method.is_stream:
            self._start(call)

    def _start(self, call: Call) -> None:
        """Begin to serve a call; a unary one when its request has arrived: many may be incomplete."""
        if call.task is None and call.trailers is None and self._life is not _Life.CLOSED:
            call.task = self._hub.loop.create_task(self._serve(call))

    # ---- responses --------------------

    async def _serve(self, call: Call) -> None:
        try:
            await call.method.serve(call)
        except CallFailed as error:
            self._finish(call, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - a bug in one method fails this call only
            _log.error("call_failed", path=call.metadata.get(":path"), peer=self.peer, exc_info=error)
            self._finish(call, StatusCode.INTERNAL, without_paths(f"{type(error).__name__}: {error}"))
        else:
            self._finish(call, StatusCode.OK, "")

    def _finish(self, call: Call, code: StatusCode, message: str) -> None:
        """Send the status of a call, after its unsent responses if it is OK."""
        if call.trailers is not None or call.stream_id not in self._calls:
            return
        call.trailers = [(b"grpc-status", b"%d" % code)]
        if message:
            call.trailers.append((b"grpc-message", encode_status_text(message).encode()))
        if code != StatusCode.OK:
            self._drop_unsent(call)
        self._drain(call)
        if call.stream_id in self._calls:  # its responses wait for the peer
            call.close()

    def _drain(self, call: Call) -> None:
        try:
            self._send(call)
        except StreamGone:  # the peer has reset it, which is not handled yet
            self._forget(call)
        self._mark_dirty()

    def _send(self, call: Call) -> None:
        engine, unsent, stream_id = self._engine, call.unsent, call.stream_id
        if unsent and not call.has_headers:
            call.has_headers = True
            engine.send_headers(stream_id, _HEADERS)
        while unsent:
            room = _COLLECTED_MAX - self._collected_bytes
            if self._is_blocked or room <= 0:
                self._has_more = True
                return
            size = min(engine.window(stream_id), room, len(unsent))
            if size <= 0:
                return
            engine.send_data(stream_id, bytes(memoryview(unsent)[:size]))
            del unsent[:size]
            self.unread_bytes -= size
            self._collected_bytes += size
            # Clients for Java measure the bandwidth with one ping per round trip that brings data.
            self._control_frames = max(self._control_frames - 1 - size // FRAME_BYTES_MAX, 0)
        call.sent()
        if call.trailers is not None:
            if call.has_headers:
                engine.send_trailers(stream_id, call.trailers)
            else:
                engine.send_headers(stream_id, (*_HEADERS, *call.trailers), is_end=True)
            self._forget(call)
            if not call.intake.is_ended:
                engine.reset(stream_id)

    def _drain_all(self) -> None:
        for call in [each for each in self._calls.values() if each.unsent]:
            self._drain(call)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.stream_id, None) is not None:
            self._drop_unsent(call)
            call.close()

    def _drop_unsent(self, call: Call) -> None:
        if call.unsent:
            self.unread_bytes -= len(call.unsent)
            call.unsent.clear()
            self._count_output()

    def _count_output(self) -> None:
        """Count responses that the peer does not read, once per turn; at once if it leaves some unsent."""
        output_bytes = self.unread_bytes + self._transport.get_write_buffer_size()
        if output_bytes != self._output_bytes:
            change, self._output_bytes = output_bytes - self._output_bytes, output_bytes
            self._share.add(change)

    def _acknowledge(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send more."""
        if self._life is not _Life.CLOSED:
            self._engine.acknowledge(stream_id, size_bytes)
            self._mark_dirty()

    def _push_out(self, is_over: bool) -> bool:
        """Fail the calls that hold the most and wait for the peer; return False without one."""
        stalled_ns = self._hub.clock.monotonic_ns() - STALLED_MS * NS_PER_MS
        calls = [
            each
            for each in self._calls.values()
            if each.size_bytes and each.waits_for_peer and (is_over or each.waits_since_ns <= stalled_ns)
        ]
        if not calls:
            return False
        kept_bytes = self._share.size_bytes * (1 - _PUSHED_OUT)
        for call in sorted(calls, key=lambda each: -each.size_bytes):
            call.trailers = None  # its responses may be complete and unread
            self._finish(
                call,
                StatusCode.RESOURCE_EXHAUSTED,
                f"this call holds {call.size_bytes:,} of {self._account.limit_bytes:,} bytes of requests "
                "and responses (queued_max_request_bytes), and others need them: send less at a time",
            )
            if self._share.size_bytes <= kept_bytes:
                break
        return True

    def _mark_dirty(self) -> None:
        if not self._is_dirty and self._life is not _Life.CLOSED:
            self._is_dirty = True
            self._hub.mark_dirty(self)

    def _refuse(self, data: bytes, error: EngineFailed) -> None:
        looks_like = "" if data.startswith(_PREFACE) else describe_bytes(data)
        self._end(str(error)[:200], error.output, looks_like)

    def _terminate(self, reason: str) -> None:
        self._end(reason, self._engine.output() + go_away(_ErrorCode.ENHANCE_YOUR_CALM))

    def _end(self, reason: str, data: bytes, looks_like: str = "") -> None:
        _log.warning("connection_refused", peer=self.peer, reason=reason, looks_like=looks_like)
        self._leave()
        self._write_last(data)

    def _leave(self) -> None:
        """End all calls; nothing more is accepted."""
        self._life = _Life.CLOSED
        self._hub.connections.discard(self)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._drop_unsent(call)
            call.close()

    def _write_last(self, data: bytes) -> None:
        self._transport.write(data)
        self._hub.leaving.add(self)
        self._transport.close()


async def _no_method(call: Call) -> None:
    raise AssertionError


_UNKNOWN: Final = Method(cast("Any", None), _no_method, is_stream=True)

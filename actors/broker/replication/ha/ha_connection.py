"""HaConnection: sends the CommitLog to one slave over one connection of the HA port.

    end of a turn ──► push ──► slices of the mapped log ──► socket buffer ──► slave
                       ▲  └─ pages on disk ──► a thread loads them ─┐
                       └────────────────────────────────────────────┘

One call sends at most TURN_BYTES; the rest waits for its place among the costly requests of the loop. Nothing
is read while the socket buffer has more than HIGH_WATER_BYTES. The slices in the buffer keep their files
mapped. A slave that leaves the buffer full for SILENCE_MS is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from actors.broker.replication.ha.slave_stream import SILENCE_MS, SlaveRefused, SlaveStream
from actors.ports import NEVER_ASKED_NS
from actors.transport.scheduler import Work
from actors.wire.remoting_errors import ProtocolError
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.disk.residency import NotResident
from store.message.buffers import Buffer
from store.message.hosts import join_address
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

TURN_BYTES = 256 * 1024
HIGH_WATER_BYTES = 1024 * 1024
_REPORTS_BYTES = 4 * 1024
_JOIN_BYTES = 16 * 1024
"""Up to this size copying is cheaper than a write of several buffers."""


class Credit:
    """The bytes that all slaves together may still get before the next refill; None: no limit."""

    def __init__(self) -> None:
        self.left_bytes: int | None = None

    def refill(self, max_bytes_per_s: int, interval_ms: int) -> None:
        """Permit the bytes of one interval; 0: no limit."""
        self.left_bytes = max(max_bytes_per_s * interval_ms // 1000, 1) if max_bytes_per_s else None

    def limit(self, size_bytes: int) -> int:
        """Return how many of `size_bytes` may be sent now."""
        return size_bytes if self.left_bytes is None else min(size_bytes, self.left_bytes)

    def spend(self, size_bytes: int) -> None:
        """Count sent bytes."""
        if self.left_bytes is not None:
            self.left_bytes -= size_bytes


class HaLoop(NamedTuple):
    """Functions of the broker's loop that a connection calls."""

    enqueue: Callable[[Work], None]
    """Runs work at the end of the turn, among the costly requests."""
    load_pages: Callable[[NotResident, Callable[[], None]], None]
    """Loads pages in a thread, then calls the function."""


class HaConnection(asyncio.BufferedProtocol):
    """The connection of one slave, at its master."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        loop: HaLoop,
        credit: Credit,
        on_change: Callable[[HaConnection], None],
    ) -> None:
        """Create the protocol of a new connection.

        Args:
            store: the log to send.
            clock: for time-outs.
            loop: runs and delays the work.
            credit: limits the rate.
            on_change: called when the connection is opened, after each report, and when it is lost.
        """
        self._opened_ns = clock.monotonic_ns()
        self.stream = SlaveStream(store.positions, self._opened_ns)
        self.host = ""
        """The slave's IP address."""
        self.address = ""
        self.sent_bytes = 0
        self._received = memoryview(bytearray(_REPORTS_BYTES))
        self._store = store
        self._clock = clock
        self._loop = loop
        self._credit = credit
        self._on_change = on_change
        self._transport: asyncio.WriteTransport | None = None
        self._is_queued = False
        self._paused_since_ns: int | None = None

    @property
    def is_open(self) -> bool:
        """True until the connection is lost or closed."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first report."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername")
        self.host, self.address = peer[0], join_address(peer[0], peer[1])
        self._on_change(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Take reports of the slave."""
        data = bytes(self._received[:nbytes])
        was_streaming = self.stream.is_streaming
        try:
            has_report = self.stream.received(data, self._clock.monotonic_ns())
        except (ProtocolError, SlaveRefused) as refusal:
            self.refuse(str(refusal))
            return
        if has_report:
            self._on_change(self)
            if not was_streaming:
                _log.info("slave_connected", slave=self.address, offset=self.stream.next)
                self.push()

    def pause_writing(self) -> None:
        """Stop sending: the socket buffer is full."""
        self._paused_since_ns = self._clock.monotonic_ns()

    def resume_writing(self) -> None:
        """Continue to send."""
        self._paused_since_ns = None
        self._push_later()

    def connection_lost(self, error: Exception | None) -> None:
        """End the stream."""
        if self._transport is not None:
            if self.stream.is_streaming:
                _log.info("slave_disconnected", slave=self.address, error=error and str(error))
            self._transport = None
            self._on_change(self)

    def idle_ns(self, now_ns: int) -> int | None:
        """Return the age of a connection without a report (see `actors.ports.Guest`)."""
        return None if self.stream.is_streaming else now_ns - self._opened_ns + NEVER_ASKED_NS

    def give_way(self) -> None:
        """Disconnect immediately, without a log event."""
        self.close()

    def push(self) -> None:
        """Send what the log has beyond the last frame, up to TURN_BYTES now."""
        if not self._is_queued:
            self._send()

    def sweep(self, now_ns: int) -> None:
        """Send a heartbeat if it is due, and disconnect a slave that sends or reads nothing."""
        if self._transport is None:
            return
        if self.stream.is_silent(now_ns):
            self.refuse(f"it has sent nothing for {SILENCE_MS // 1000} s")
            return
        paused_ns = self._paused_since_ns
        if paused_ns is not None and now_ns - paused_ns >= SILENCE_MS * NS_PER_MS:
            self.refuse(f"it has not read what was sent for {SILENCE_MS // 1000} s")
            return
        self.push()
        heartbeat = None if paused_ns is not None else self.stream.heartbeat(now_ns)
        if heartbeat is not None:
            self._transport.write(heartbeat)

    def refuse(self, reason: str) -> None:
        """Disconnect the slave and log the reason."""
        _log.warning("slave_refused", slave=self.address, reason=reason)
        self.close()

    def close(self) -> None:
        """Disconnect immediately; what the slave has not read is dropped."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._on_change(self)

    def _push_later(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._loop.enqueue(self._send)

    def _loaded(self) -> None:
        self._is_queued = False
        self._push_later()

    def _send(self) -> None:
        self._is_queued = False
        stream, transport, written = self.stream, self._transport, self._store.positions.written
        if (
            transport is None
            or not stream.is_streaming
            or self._paused_since_ns is not None
            or stream.next >= written
        ):
            return
        size_bytes = self._credit.limit(TURN_BYTES)
        if size_bytes <= 0:
            return  # until the next refill
        try:
            with self._store.resident_only:
                piece = self._store.log_bytes(stream.next, size_bytes)
        except NotResident as cold:
            self._is_queued = True
            self._loop.load_pages(cold, self._loaded)
            return
        except StoreError as error:  # the file was deleted before the slave had it
            self.refuse(f"the log at {stream.next:,} cannot be sent: {error}; empty the slave's store")
            return
        self._credit.spend(len(piece))
        self.sent_bytes += len(piece)
        frames: list[Buffer] = list(stream.frames(piece))
        if len(piece) <= _JOIN_BYTES:
            transport.write(b"".join(frames))
        else:
            transport.writelines(frames)
        stream.sent(self._clock.monotonic_ns())
        if stream.next < written:
            self._push_later()

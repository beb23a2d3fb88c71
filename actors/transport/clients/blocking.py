"""BlockingConnection: one connection to a process, for callers without an event loop."""

from __future__ import annotations

import itertools
import select
import socket
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from actors.transport.tls.blocking import secured
from actors.transport.tls.contexts import ClientTls
from actors.wire.command import (
    HEADER_LENGTH_MASK,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    PREFIX,
    RemotingCommand,
    append_command,
    decode_command,
)
from actors.wire.remoting_errors import Closed, ConnectFailed, ProtocolError, TimedOut
from store.message.hosts import join_address, split_address

RECEIVE_BYTES = 64 * 1024
# A connection that was idle for longer is checked before use: a broker closes idle connections.
IDLE_CHECK_AFTER_S = 1.0
_TIMEVAL = struct.Struct("@ll")


class BlockingConnection:
    """Blocking connection to `address` (`host:port`), with TLS if `tls` is given. A context manager.

    After an error the caller must close the connection, because the response may still arrive.
    """

    def __init__(self, address: str, timeout_ms: int, tls: ClientTls | None = None) -> None:
        """Connect within `timeout_ms`, which also limits each later wait. Raises ConnectFailed."""
        self.address = address
        try:
            host, port = split_address(address)
            self.socket = socket.create_connection((host, port), timeout_ms / 1000)
            if tls is not None:
                self.socket = secured(self.socket, tls, host)
        except TimeoutError:
            raise ConnectFailed(address, f"no connection within {timeout_ms} ms") from None
        except (OSError, ValueError) as error:  # ValueError: an invalid address or host name
            reason = error.strerror if isinstance(error, OSError) else None
            raise ConnectFailed(address, f"no connection: {reason or error}") from error
        host, port = self.socket.getpeername()[:2]
        self.peer = join_address(host, port)
        self._has_tls = tls is not None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # SO_RCVTIMEO and SO_SNDTIMEO instead of Python's timeout, which would add a poll() to every call.
        self.socket.settimeout(None)
        self._set_timeout(timeout_ms)
        self._opaques = itertools.count(1)
        self._used_at_s = time.monotonic()
        self._unread: bytes = b""

    @property
    def is_usable(self) -> bool:
        """Return False if the peer has closed the connection."""
        if time.monotonic() - self._used_at_s < IDLE_CHECK_AFTER_S:
            return True
        readable = select.poll()
        readable.register(self.socket, select.POLLIN)
        return not readable.poll(0)  # else closed, or unexpected bytes

    def exchange(self, command: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
        """Send `command` and return the response, whatever its code.

        Raises TimedOut if the peer is silent for `timeout_ms` (default: as before), and Closed if the
        connection breaks.
        """
        if timeout_ms is not None and timeout_ms != self._timeout_ms:
            self._set_timeout(timeout_ms)
        self.send(command)
        return self.receive(command.opaque)

    def send(self, command: RemotingCommand) -> None:
        """Send `command` with a new `opaque`, by which `receive` finds the response. Raises as `exchange`."""
        command.opaque = next(self._opaques)
        frame: list[bytes | bytearray | memoryview] = []
        append_command(frame, command)
        try:
            self.socket.sendall(b"".join(frame))
        except OSError as error:
            raise self._failure(error) from error

    def next_opaque(self) -> int:
        """Return the `opaque` for another request."""
        return next(self._opaques)

    def receive(self, opaque: int | None = None) -> RemotingCommand:
        """Return the response to the request with this `opaque`, or to any request. Raises as `exchange`.

        Requests of the peer and other responses are ignored.
        """
        try:
            response = self._receive()
            while not response.is_response or opaque not in (None, response.opaque):
                response = self._receive()
        except (OSError, ProtocolError) as error:
            raise self._failure(error) from error
        self._used_at_s = time.monotonic()
        return response

    def shut_down(self) -> None:
        """Break the connection, in any thread; a thread that waits for a response gets Closed."""
        with suppress(OSError):  # it is broken already
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # SSLSocket's is not for two threads

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set_timeout(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        if self._has_tls:  # OpenSSL repeats a read that SO_RCVTIMEO has ended
            self.socket.settimeout(timeout_ms / 1000)
            return
        interval = _TIMEVAL.pack(timeout_ms // 1000, timeout_ms % 1000 * 1000)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def _receive(self) -> RemotingCommand:
        """Return the next frame. Raises OSError, ProtocolError."""
        data = self._unread
        while len(data) < PREFIX.size:
            more = self.socket.recv(RECEIVE_BYTES)
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
        total, mark = PREFIX.unpack_from(data)
        body, end = PREFIX.size + (mark & HEADER_LENGTH_MASK), LENGTH_BYTES + total
        if not body <= end <= LENGTH_BYTES + MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {total:,} bytes with a header of {body - PREFIX.size:,} bytes")
        self._unread = data[end:]
        if len(data) >= end:
            return decode_command(data[PREFIX.size : body], mark >> 24, data[body:end])
        frame = bytearray(end)
        frame[: len(data)] = data
        view = memoryview(frame)
        filled = len(data)
        while filled < end:
            count = self.socket.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            filled += count
        return decode_command(bytes(view[PREFIX.size : body]), mark >> 24, view[body:])

    def _failure(self, error: Exception) -> TimedOut | Closed:
        if isinstance(error, (BlockingIOError, TimeoutError)):
            reason = f"no response within {self._timeout_ms} ms; the request may have been executed"
            return TimedOut(self.address, reason)
        return Closed(self.address, f"the connection broke: {error}; the request may have been executed")

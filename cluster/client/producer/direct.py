"""DirectConnections: blocking connections for the first attempt of a send, used in the caller's thread.

Passing a send to the thread of the event loop and back takes longer than the round trip to the broker: a send
takes 0.23 ms through the loop and 0.10 ms directly. Therefore a blocking `send` makes the first attempt in
the caller's thread. The event loop takes over if the route is unknown, the connection is lost or the broker
responds with a retriable error.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence

from actors.remoting.client import parse_address
from actors.remoting.codes import FLAG_RESPONSE
from actors.remoting.command import (
    HEADER_LENGTH_MASK,
    MAX_FRAME_BYTES,
    PREFIX,
    RemotingCommand,
    append_command,
    decode_command,
)
from actors.remoting.remoting_errors import Closed, ConnectFailed, ProtocolError, RemotingError, TimedOut
from actors.remoting.tls.blocking import secured
from actors.remoting.tls.contexts import ClientTls
from cluster.client.hooks import CallHook
from cluster.client.transport.hooked_calls import after_call, before_call

RECEIVE_BYTES = 64 * 1024
# A connection that was idle for longer is checked before use: the broker closes idle connections.
IDLE_CHECK_AFTER_S = 1.0
_TIMEVAL = struct.Struct("@ll")
_LENGTH = struct.Struct(">I")


class DirectConnection:
    """Blocking connection to one broker, with TLS if `tls` is given; one request at a time."""

    def __init__(self, address: str, timeout_ms: int, tls: ClientTls | None = None) -> None:
        self.address = address
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), timeout_ms / 1000)
            if tls is not None:
                self._socket = secured(self._socket, tls, host)
        except TimeoutError:
            raise ConnectFailed(address, f"no connection within {timeout_ms} ms") from None
        except (OSError, ValueError) as error:  # ValueError: a host name that the resolver cannot encode
            reason = error.strerror if isinstance(error, OSError) else None
            raise ConnectFailed(address, f"no connection: {reason or error}") from error
        self._has_tls = tls is not None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # SO_RCVTIMEO and SO_SNDTIMEO instead of Python's timeout, which would add a poll() to every call.
        self._socket.settimeout(None)
        self._timeout_ms = 0
        self._opaques = itertools.count(1)
        self._used_at_s = time.monotonic()

    @property
    def is_usable(self) -> bool:
        """Return False if the broker has closed the connection."""
        if time.monotonic() - self._used_at_s < IDLE_CHECK_AFTER_S:
            return True
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        return not readable.poll(0)  # else closed, or unexpected bytes

    def exchange(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send `command` and return the response.

        Raises TimedOut after `timeout_ms`, and Closed if the connection breaks. After either error the
        caller must close the connection.
        """
        if timeout_ms != self._timeout_ms:
            self._set_timeout(timeout_ms)
        command.opaque = next(self._opaques)
        frame: list[bytes | bytearray | memoryview] = []
        append_command(frame, command)
        try:
            self._socket.sendall(b"".join(frame))
            response = self._receive()
            while not response.flag & FLAG_RESPONSE or response.opaque != command.opaque:
                response = self._receive()
        except (BlockingIOError, TimeoutError):
            reason = f"no response within {timeout_ms} ms; the request may have been executed"
            raise TimedOut(self.address, reason) from None
        except (OSError, ProtocolError) as error:
            raise Closed(
                self.address, f"the connection broke: {error}; the request may have been executed"
            ) from error
        self._used_at_s = time.monotonic()
        return response

    def _set_timeout(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        if self._has_tls:  # OpenSSL repeats a read that SO_RCVTIMEO has ended
            self._socket.settimeout(timeout_ms / 1000)
            return
        interval = _TIMEVAL.pack(timeout_ms // 1000, timeout_ms % 1000 * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def _receive(self) -> RemotingCommand:
        """Return the next frame. No bytes follow it, because there is one request at a time."""
        data = self._socket.recv(RECEIVE_BYTES)
        while len(data) < PREFIX.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
            more = self._socket.recv(RECEIVE_BYTES)
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
            if len(data) > MAX_FRAME_BYTES:
                raise ProtocolError(f"the response exceeds the frame limit of {MAX_FRAME_BYTES:,} bytes")
        _, mark = PREFIX.unpack_from(data)
        body = PREFIX.size + (mark & HEADER_LENGTH_MASK)
        return decode_command(data[PREFIX.size : body], mark >> 24, data[body:])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class DirectConnections:
    """Thread-safe pool of connections by address. The most recently used one is taken first."""

    def __init__(
        self, connect_timeout_ms: int, hooks: Sequence[CallHook] = (), tls: ClientTls | None = None
    ) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._hooks = hooks
        self._idle: dict[str, list[DirectConnection]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def exchange(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send `command` to `address` on an idle or a new connection and return the response.

        Raises ConnectFailed, TimedOut, Closed, and the exception of a `before_call` hook.
        """
        if not self._hooks:
            return self._exchange(address, command, timeout_ms)
        before_call(self._hooks, address, command)
        try:
            response = self._exchange(address, command, timeout_ms)
        except RemotingError as error:
            after_call(self._hooks, address, command, error)
            raise
        after_call(self._hooks, address, command, response)
        return response

    def _exchange(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        connection = self._take_idle(address)
        if connection is None:
            connection = DirectConnection(address, min(self._connect_timeout_ms, timeout_ms), self._tls)
        try:
            response = connection.exchange(command, timeout_ms)
        except BaseException:
            connection.close()  # a late response must not be read as that of the next request
            raise
        self._release(connection)
        return response

    def _take_idle(self, address: str) -> DirectConnection | None:
        idle = self._idle.get(address)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:
                return None
            if connection.is_usable:
                return connection
            connection.close()
        return None

    def _release(self, connection: DirectConnection) -> None:
        idle = self._idle.get(connection.address)
        if idle is None:
            with self._lock:
                idle = self._idle.setdefault(connection.address, [])
        idle.append(connection)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close the idle connections now, and the others when their requests finish."""
        self._is_closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()

"""DirectConnections: blocking connections for the first attempt of a send, used in the caller's thread.

Passing a send to the thread of the event loop and back takes longer than the round trip to the broker: a send
takes 0.23 ms through the loop and 0.10 ms directly. Therefore a blocking `send` makes the first attempt in
the caller's thread. The event loop takes over if the route is unknown, the connection is lost or the broker
responds with a retriable error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from actors.transport.clients.blocking import BlockingConnection
from actors.transport.clients.proofs import RequestSigner
from actors.transport.clients.signing_blocking import open_blocking
from actors.transport.tls.contexts import ClientTls
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.client.hooks import CallHook
from cluster.client.transport.hooked_calls import after_call, before_call


class DirectConnections:
    """Thread-safe pool of connections by address. The most recently used one is taken first."""

    def __init__(
        self,
        connect_timeout_ms: int,
        hooks: Sequence[CallHook] = (),
        tls: ClientTls | None = None,
        signer: RequestSigner | None = None,
    ) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._signer = signer
        self._hooks = hooks
        self._idle: dict[str, list[BlockingConnection]] = {}
        self._busy: dict[BlockingConnection, int] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def exchange(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send `command` to `address` on an idle or a new connection and return the response.

        Raises ConnectFailed, NotProven, TimedOut, Closed, and the exception of a `before_call` hook.
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
            connect_timeout_ms = min(self._connect_timeout_ms, timeout_ms)
            connection = open_blocking(address, connect_timeout_ms, self._tls, self._signer)
        self._busy[connection] = time.monotonic_ns()
        try:
            response = connection.exchange(command, timeout_ms)
        except BaseException:
            connection.close()  # a late response must not be read as that of the next request
            raise
        finally:
            del self._busy[connection]
        self._release(connection)
        return response

    def _take_idle(self, address: str) -> BlockingConnection | None:
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

    def _release(self, connection: BlockingConnection) -> None:
        idle = self._idle.get(connection.address)
        if idle is None:
            with self._lock:
                idle = self._idle.setdefault(connection.address, [])
        idle.append(connection)
        if self._is_closed:
            self.close()

    def unanswered(self, before_ns: int) -> set[str]:
        """Return the addresses with a request that was sent before `before_ns` and has no response yet."""
        return {each.address for each, began_ns in list(self._busy.items()) if began_ns < before_ns}

    def abandon(self, address: str, reason: str) -> None:
        """Break the connections to an address that wait for a response. Their requests fail with Closed."""
        for connection in list(self._busy):
            if connection.address == address:
                connection.shut_down()

    def close(self) -> None:
        """Close the idle connections now, and the others when their requests finish."""
        self._is_closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()

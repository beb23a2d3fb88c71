"""RemotingServer: accepts connections and passes every request through a chain of steps to its handler."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

from actors.bounds import Use, uses_of
from actors.ports import Port, Ports
from actors.transport.chain import Chain, Step
from actors.transport.connection import Connection
from actors.transport.hub import Hub, Peer
from actors.transport.in_process import InProcessConnection
from actors.transport.limits import COSTLY_REQUESTS, RemotingLimits
from actors.transport.request import Observer
from actors.transport.table import RequestTable
from actors.transport.tls.contexts import ServerTls
from actors.transport.tls.gate import TlsGate
from store.common.clock import Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

_SWEEPS_PER_LIMIT: Final = 12
_CLOSE_TIMEOUT_S: Final = 2.0
_CLOSE_CHECK_S: Final = 0.01


class RemotingServer:
    """Serves the requests of a table on one address, on the event loop on which `start` runs.

    `tick` runs at the end of every turn in which bytes were received, before responses are written and costly
    requests are handled. With `tls`, the listeners accept TLS connections.
    """

    def __init__(
        self,
        table: RequestTable,
        clock: Clock,
        limits: RemotingLimits | None = None,
        tick: Callable[[], None] | None = None,
        steps: Sequence[Step] = (),
        observers: Sequence[Observer] = (),
        tls: ServerTls | None = None,
        ports: Ports | None = None,
    ) -> None:
        self.hub = Hub(clock, limits or RemotingLimits(), tick, is_server=True)
        self.request_tick = self.hub.request_tick
        self.chain = Chain(table, steps, observers)
        self.port = 0
        self.tls = tls
        self.ports = ports or Ports(clock)
        """The ports of the process."""
        self._ports: list[Port] = []
        self._in_process: list[InProcessConnection] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen on a port; 0 lets the system choose one. Return the port. Raises OSError if it is in use."""
        self.port = await self._listen(host, port)
        self._sweep()
        self.hub.press()
        return self.port

    async def also_listen(self, host: str, port: int) -> None:
        """Listen on an additional port. Raises OSError if it is in use."""
        await self._listen(host, port)

    def connect_in_process(self, name: str, peer_bytes: bytes) -> InProcessConnection:
        """Return a connection for a caller in this process.

        Its requests run through the same chain as those from sockets.
        """
        connection = InProcessConnection(self.hub, self.chain, name, peer_bytes)
        self._in_process.append(connection)
        return connection

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        costly = COSTLY_REQUESTS.use(
            lambda: max((each.open_requests for each in self.hub.connections), default=0),
            lambda: self.hub.limits.costly_requests_max,
        )
        return (*self.hub.bounds(), costly, *uses_of(self.chain.steps))

    def discard_input(self) -> None:
        """Accept no further connections or requests; send the responses to accepted requests."""
        self._close_ports()
        for connection in (*self.hub.connections, *self._in_process):
            connection.discard_input()

    async def stop(self) -> None:
        """Stop listening, write the collected responses and close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._close_ports()
        for connection in self._in_process:
            connection.close("this process is shutting down")
        await self.hub.stop()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._until_left()
        except TimeoutError:
            _log.info("connection_close_timed_out", port=self.port, waited_s=_CLOSE_TIMEOUT_S)

    @property
    def connections(self) -> frozenset[Peer]:
        """The open connections."""
        return frozenset(self.hub.connections)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets."""
        return tuple(each.listener for each in self._ports)

    async def _listen(self, host: str, port: int) -> int:
        hub, limits = self.hub, self.hub.limits
        opened = await self.ports.listen(
            host, port, self._accept, lambda: hub.connections, limits.max_connections
        )
        self._ports.append(opened)
        return opened.number

    def _close_ports(self) -> None:
        for each in self._ports:
            each.close()
        self._ports = []

    async def _until_left(self) -> None:
        """Wait until the peers have read the last responses."""
        while self.hub.leaving:  # noqa: ASYNC110 - they end by themselves, at any place
            await asyncio.sleep(_CLOSE_CHECK_S)
        await asyncio.sleep(0)  # the transports close their sockets

    def _accept(self) -> asyncio.BufferedProtocol:
        return self._connection() if self.tls is None else TlsGate(self.hub, self.tls, self._connection)

    def _connection(self) -> Connection:
        return Connection(self.hub, self.chain)

    def _sweep(self) -> None:
        limits = self.hub.limits
        interval_s = min(limits.idle_ms, limits.unread_ms) / 1000 / _SWEEPS_PER_LIMIT
        self._sweeper = self.hub.loop.call_later(
            interval_s, self._sweep
        )  # schedule the next sweep first: this one may raise
        self.hub.sweep()

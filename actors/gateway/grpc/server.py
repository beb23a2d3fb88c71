"""GrpcServer: accepts gRPC connections on one port, plain and with TLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from actors.bounds import Use
from actors.gateway.grpc.calls import Method
from actors.gateway.grpc.connection import GrpcConnection
from actors.gateway.grpc.decoder import LongWork
from actors.gateway.grpc.limits import STREAMS, GrpcLimits
from actors.host.trim import trim_if_released
from actors.memory_account import MemoryAccount
from actors.ports import Port, Ports
from actors.transport.hub import Hub
from actors.transport.limits import RemotingLimits
from actors.transport.tls.contexts import ServerTls
from actors.transport.tls.gate import TlsGate
from store.common.clock import Clock

_SWEEP_S: Final = 5.0
_DRAIN_CHECK_S: Final = 0.05


class GrpcServer:
    """Serves methods on one address, on the event loop on which `start` runs."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        clock: Clock,
        limits: RemotingLimits,
        account: MemoryAccount,
        grpc_limits: GrpcLimits | None = None,
        tls: ServerTls | None = None,
        ports: Ports | None = None,
    ) -> None:
        """Create the server.

        Args:
            methods: the served methods, by path (`/package.Service/Method`).
            clock: for idle connections and incomplete requests.
            limits: of the connections.
            account: counts the memory that peers make the process keep.
            grpc_limits: of the calls.
            tls: the server's certificate; the first byte of a connection decides whether it uses TLS.
            ports: the ports of the process; None: it has no other one.
        """
        self.hub = Hub(clock, limits, account=account)
        self.account = account
        self.port = 0
        self.tls = tls
        self._methods = methods
        self._limits = grpc_limits or GrpcLimits()
        self._long_work = LongWork()
        self._port: Port | None = None
        self.ports = ports or Ports(clock)
        """The ports of the process."""
        self._sweeper: asyncio.TimerHandle | None = None

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        streams = STREAMS.use(
            lambda: max((each.open_requests for each in self.hub.connections), default=0),
            lambda: self._limits.streams_max,
        )
        return (*self.hub.bounds(), streams)

    async def start(self, host: str, port: int) -> int:
        """Listen on a port; 0 lets the system choose one. Return the port. Raises OSError if it is in use."""
        hub, limits = self.hub, self.hub.limits
        self._port = await self.ports.listen(
            host, port, self._accept, lambda: hub.connections, limits.max_connections
        )
        self.port = self._port.number
        self._sweep()
        self.hub.press()
        return self.port

    async def stop(self, drain_ms: int = 0) -> None:
        """Stop listening, let the open calls end for up to `drain_ms`, and close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._port is not None:
            self._port.close()
        for connection in tuple(self.hub.connections):
            connection.discard_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_ms / 1000):
                await self._until_drained()
        await self.hub.stop()
        self._long_work.close()

    async def _until_drained(self) -> None:
        while self.hub.connections:  # noqa: ASYNC110 - connections end by themselves, at any place
            await asyncio.sleep(_DRAIN_CHECK_S)

    def _accept(self) -> asyncio.BufferedProtocol:
        return self._connection() if self.tls is None else TlsGate(self.hub, self.tls, self._connection)

    def _connection(self) -> GrpcConnection:
        return GrpcConnection(self.hub, self._methods, self._limits, self.account, self._long_work)

    def _sweep(self) -> None:
        self._sweeper = self.hub.loop.call_later(_SWEEP_S, self._sweep)
        self.hub.sweep()
        trim_if_released(self.account)

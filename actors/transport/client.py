"""RemotingClient: sends requests to other processes over one connection per address."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from actors.transport.calls import Callback
from actors.transport.chain import Chain
from actors.transport.clients.proofs import NEEDS_PROOF, Demand, RequestSigner
from actors.transport.connection import Connection
from actors.transport.hub import Hub
from actors.transport.limits import RemotingLimits
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.transport.tls.contexts import ClientTls
from actors.transport.tls.transport import TlsTransport
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import (
    Closed,
    ConnectFailed,
    NotProven,
    Refused,
    RemotingError,
    TimedOut,
)
from actors.wire.signing import Signer
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message.hosts import split_address

_log = get_logger(__name__)


_Call = Callable[[Connection, RemotingCommand, int, Callback], None]


class _Waiting:
    """A request that waits for its connection to open."""

    __slots__ = ("_callback", "_command", "_deadline_ns", "_timer")

    def __init__(
        self, command: RemotingCommand, callback: Callback, deadline_ns: int, timer: asyncio.TimerHandle
    ) -> None:
        self._command = command
        self._callback = callback
        self._deadline_ns = deadline_ns
        self._timer = timer

    def connected(self, connection: Connection, now_ns: int, call: _Call) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            remaining_ms = max(1, (self._deadline_ns - now_ns) // NS_PER_MS)
            call(connection, self._command, remaining_ms, self._callback)

    def fail(self, error: RemotingError) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            self._callback(error)


class RemotingClient:
    """Sends requests over one connection per address (`host:port` or `[v6]:port`).

    A connection is opened on first use and reopened after it was closed. Requests that a peer sends over it
    are handled by `table`. With `tls`, all connections use TLS. With `signer`, requests are signed, and peers
    prove themselves as far as it demands that. Use a client on one event loop only.
    """

    def __init__(
        self,
        clock: Clock,
        table: RequestTable | None = None,
        limits: RemotingLimits | None = None,
        tick: Callable[[], None] | None = None,
        tls: ClientTls | None = None,
        signer: RequestSigner | None = None,
    ) -> None:
        self.hub = Hub(clock, limits or RemotingLimits(), tick)
        self.tls = tls
        self._signer = signer
        self._chain = Chain(table or RequestTable(), (self._check_pushed,) if signer else ())
        self._open: dict[str, Connection] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        self._unproven: set[str] = set()
        self._is_closed = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request and return the response, whatever its code.

        Raises ConnectFailed, TimedOut or Closed if there is no response, NotProven if it is not to be used.
        """
        if command.code in NEEDS_PROOF:
            refusal = await self.prove(address, timeout_ms)
            if refusal is not None:
                return refusal
        future: asyncio.Future[RemotingCommand] = self.hub.loop.create_future()
        self.invoke_callback(address, command, timeout_ms, partial(_settle_call, future))
        return await future

    async def ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request and return the response if its code is SUCCESS.

        Raises Refused for another code; ConnectFailed, TimedOut or Closed if there is no response.
        """
        response = await self.invoke(address, command, timeout_ms)
        if response.code != 0:
            raise Refused(response.code, response.remark or "error response without a remark")
        return response

    def invoke_callback(
        self, address: str, command: RemotingCommand, timeout_ms: int, callback: Callback
    ) -> None:
        """Send a request; call `callback` with the response or a RemotingError.

        Creates no task and no future, for the hot path.
        """
        connection = self._open.get(address)
        if connection is not None:
            self._call(connection, command, timeout_ms, callback, address)
        elif self._is_closed:
            callback(Closed(address, "this client has been closed"))
        else:
            self._wait_for_connection(address, command, timeout_ms, callback)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a one-way request; it is lost if the connection has to be opened and that fails."""
        connection = self._open.get(address)
        if connection is not None:
            self._oneway(connection, command, address)
        elif not self._is_closed:
            self.hub.spawn(self._connect_and_send(address, command))

    def oneway_over(self, connection: Connection, command: RemotingCommand) -> None:
        """Send a one-way request over a connection of this client, as the answer to a request of its peer."""
        self._oneway(connection, command, connection.peer)

    async def connect(self, address: str) -> Connection:
        """Return the connection to an address; open it if necessary. Raises ConnectFailed, NotProven."""
        connection = self._open.get(address)
        if connection is not None:
            return connection
        host, port = parse_address(address)
        limit_s = self.hub.limits.connect_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                made = await self._open_connection(address, host, port)
            await self._prove_opened(address, made)
        except TimeoutError:
            raise ConnectFailed(address, f"could not connect within {limit_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: a host name that the resolver cannot encode
            reason = error.strerror if isinstance(error, OSError) else None
            raise ConnectFailed(address, f"could not connect: {reason or error}") from error
        other = self._open.get(address)
        if other is not None:  # another task has opened one meanwhile
            made.close("another connection to this address was made first")
            return other
        self._open[address] = made
        made.on_close(lambda closed: self._forget(address, closed))
        return made

    async def _open_connection(self, address: str, host: str, port: int) -> Connection:
        """Return a new connection. Raises OSError, and ConnectFailed if the TLS handshake fails."""
        hub, connection = self.hub, Connection(self.hub, self._chain, address)
        if self.tls is None:
            await hub.loop.create_connection(lambda: connection, host, port)
            return connection
        opened: asyncio.Future[str] = hub.loop.create_future()
        try:
            secured = TlsTransport(hub.memory, self.tls, connection, partial(_settle, opened), host)
        except ValueError as error:
            raise ConnectFailed(address, f"TLS cannot verify the host name {host!r}: {error}") from error
        raw, _ = await hub.loop.create_connection(lambda: secured, host, port)
        try:
            failure = await opened
        except asyncio.CancelledError:
            raw.abort()
            raise
        if failure:
            raw.close()
            raise ConnectFailed(address, failure)
        return connection

    def connection(self, address: str) -> Connection | None:
        """Return the open connection to an address, or None."""
        return self._open.get(address)

    def unanswered(self, before_ns: int) -> set[str]:
        """Return the addresses with a request that was sent before `before_ns` and has no response yet."""
        found = ((address, each.oldest_call_ns) for address, each in self._open.items())
        return {address for address, began_ns in found if began_ns is not None and began_ns < before_ns}

    def abandon(self, address: str, reason: str) -> None:
        """Close the connection to an address at once. Its requests in flight fail with Closed."""
        connection = self._open.get(address)
        if connection is not None:
            connection.abort(reason)

    async def close(self) -> None:
        """Close all connections. Requests in flight fail with Closed."""
        self._is_closed = True
        await self.hub.stop()
        for address in tuple(self._waiting):
            self._fail_waiting(address, Closed(address, "this client has been closed"))

    def _wait_for_connection(
        self, address: str, command: RemotingCommand, timeout_ms: int, callback: Callback
    ) -> None:
        hub = self.hub
        deadline_ns = hub.clock.monotonic_ns() + timeout_ms * NS_PER_MS
        waiting_list = self._waiting.get(address)
        if waiting_list is None:
            waiting_list = self._waiting[address] = []
            hub.spawn(self._connect_for_waiting(address))

        def give_up() -> None:
            # Remove it here: a timer that has fired is not `cancelled`, so `connected` would still send the
            # request.
            waiting_list.remove(waiting)
            callback(TimedOut(address, f"could not connect within the request's timeout of {timeout_ms} ms"))

        waiting = _Waiting(command, callback, deadline_ns, hub.loop.call_later(timeout_ms / 1000, give_up))
        waiting_list.append(waiting)

    async def _connect_for_waiting(self, address: str) -> None:
        try:
            connection = await self.connect(address)
        except RemotingError as error:
            self._fail_waiting(address, error)
            return
        now_ns = self.hub.clock.monotonic_ns()
        for waiting in self._waiting.pop(address, ()):
            waiting.connected(connection, now_ns, partial(self._call, address=address))

    def _fail_waiting(self, address: str, error: RemotingError) -> None:
        for waiting in self._waiting.pop(address, ()):
            waiting.fail(error)

    async def _connect_and_send(self, address: str, command: RemotingCommand) -> None:
        try:
            connection = await self.connect(address)
        except RemotingError as error:
            _log.info("oneway_request_lost", address=address, code=command.code, reason=error.reason)
            return
        self._oneway(connection, command, address)

    def _call(
        self,
        connection: Connection,
        command: RemotingCommand,
        timeout_ms: int,
        callback: Callback,
        address: str,
    ) -> None:
        signer = self._signer
        if signer is not None:
            signer.sign(command, address, connection.peer)
            callback = signer.checking(address, connection, command, callback)
        connection.call(command, timeout_ms, callback)

    def _oneway(self, connection: Connection, command: RemotingCommand, address: str) -> None:
        if self._signer is not None:
            self._signer.sign(command, address, connection.peer)
        connection.oneway(command)

    async def _prove_opened(self, address: str, connection: Connection) -> None:
        """Let the peer of a new connection prove itself, if that is demanded. Raises RemotingError."""
        demand = Demand.NOTHING if self._signer is None else self._signer.demand_of(address)
        if demand is Demand.NOTHING:
            return
        try:
            refusal = await self._prove(address, connection, self.hub.limits.connect_timeout_ms)
            problem = (
                None
                if refusal is None
                else NotProven(address, f"the peer did not prove itself: {refusal.remark}")
            )
        except NotProven as error:
            problem = error
        except RemotingError:
            connection.close("the peer did not prove itself")
            raise
        if problem is not None and demand is Demand.PROOF:
            connection.close("the peer did not prove itself")
            raise problem
        if problem is not None and address not in self._unproven:
            self._unproven.add(address)
            _log.warning("peer_not_proven", address=address, reason=problem.reason)

    async def prove(self, address: str, timeout_ms: int) -> RemotingCommand | None:
        """Let the process at an address prove that it knows the key of this client; return its refusal.

        Without keys, and with RocketMQ's signature, nothing is proved. Raises as `invoke`.
        """
        if self._signer is None or not self._signer.can_prove:
            return None
        return await self._prove(address, await self.connect(address), timeout_ms)

    async def _prove(self, address: str, connection: Connection, timeout_ms: int) -> RemotingCommand | None:
        """Let the peer prove that it knows the key of this client's requests; return its refusal.

        Raises NotProven if it does not prove it, RemotingError if it does not respond.
        """
        if self._signer is None or connection.is_proven:
            return None
        future: asyncio.Future[RemotingCommand] = self.hub.loop.create_future()
        command, callback = self._signer.proving(address, connection, partial(_settle_call, future))
        connection.call(command, timeout_ms, callback)
        response = await future
        return None if connection.is_proven else response

    def _check_pushed(self, context: RequestContext) -> None:
        """Step for requests of peers: of those that must prove themselves, no other may send any."""
        signer = self._signer
        if signer is not None and signer.demand is Demand.PROOF and not context.connection.is_proven:
            raise Refused(ResponseCode.NO_PERMISSION, "the sender has not proved that it is of the cluster")

    def _forget(self, address: str, connection: Connection) -> None:
        if self._open.get(address) is connection:
            del self._open[address]


def _settle_call(future: asyncio.Future[RemotingCommand], result: RemotingCommand | RemotingError) -> None:
    if future.done():
        return
    if isinstance(result, RemotingError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _settle(opened: asyncio.Future[str], failure: str) -> None:
    if not opened.done():
        opened.set_result(failure)


class SigningClient(RemotingClient):
    """RemotingClient that signs all requests as one user."""

    def __init__(
        self,
        clock: Clock,
        signer: Signer,
        table: RequestTable | None = None,
        limits: RemotingLimits | None = None,
        tls: ClientTls | None = None,
        demand: Demand = Demand.NOTHING,
        nameservers: Callable[[], Collection[str]] = tuple,
    ) -> None:
        super().__init__(clock, table, limits, None, tls, RequestSigner(signer, clock, demand, nameservers))


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConnectFailed if the form is wrong."""
    try:
        return split_address(address)
    except ValueError as error:
        raise ConnectFailed(address, str(error)) from None

"""RemotingClient: sends requests to other processes, over one connection for each address."""

import asyncio
from collections.abc import Callable

from actors.remoting.calls import Callback
from actors.remoting.chain import Chain
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.hub import Hub
from actors.remoting.limits import RemotingLimits
from actors.remoting.remoting_errors import Closed, ConnectFailed, Refused, RemotingError, TimedOut
from actors.remoting.table import RequestTable
from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

_log = get_logger(__name__)


class _Waiting:
    """A request whose connection is not open yet."""

    __slots__ = ("_callback", "_command", "_deadline_ns", "_timer")

    def __init__(
        self, command: RemotingCommand, callback: Callback, deadline_ns: int, timer: asyncio.TimerHandle
    ) -> None:
        self._command = command
        self._callback = callback
        self._deadline_ns = deadline_ns
        self._timer = timer

    def connected(self, connection: Connection, now_ns: int) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            remaining_ms = max(1, (self._deadline_ns - now_ns) // NS_PER_MS)
            connection.call(self._command, remaining_ms, self._callback)

    def fail(self, error: RemotingError) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            self._callback(error)


class RemotingClient:
    """Connections by address (`host:port`, `[v6]:port`), opened on first use and again after they are closed.

    Requests of the peers run through `table`. Lives on one event loop.
    """

    def __init__(
        self,
        clock: Clock,
        table: RequestTable | None = None,
        limits: RemotingLimits | None = None,
        tick: Callable[[], None] | None = None,
    ) -> None:
        self.hub = Hub(clock, limits or RemotingLimits(), tick)
        self._chain = Chain(table or RequestTable())
        self._open: dict[str, Connection] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        self._is_closed = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Return the peer's response, whatever its code; raises ConnectFailed, TimedOut or Closed."""
        future: asyncio.Future[RemotingCommand] = self.hub.loop.create_future()

        def settle(result: RemotingCommand | RemotingError) -> None:
            if future.done():
                return
            if isinstance(result, RemotingError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.invoke_callback(address, command, timeout_ms, settle)
        return await future

    async def ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Return the peer's response if its code is SUCCESS; raises Refused with its code otherwise."""
        response = await self.invoke(address, command, timeout_ms)
        if response.code != 0:
            raise Refused(response.code, response.remark or "no reason given")
        return response

    def invoke_callback(
        self, address: str, command: RemotingCommand, timeout_ms: int, callback: Callback
    ) -> None:
        """Send a request, without a task or a future; the callback gets the response or a RemotingError."""
        connection = self._open.get(address)
        if connection is not None:
            connection.call(command, timeout_ms, callback)
        elif self._is_closed:
            callback(Closed(address, "this client has been closed"))
        else:
            self._wait_for_connection(address, command, timeout_ms, callback)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request without a response; it may be lost while a connection is being opened."""
        connection = self._open.get(address)
        if connection is not None:
            connection.oneway(command)
        elif not self._is_closed:
            self.hub.spawn(self._connect_and_send(address, command))

    async def connect(self, address: str) -> Connection:
        """Return the connection to an address, and open it if necessary; raises ConnectFailed."""
        connection = self._open.get(address)
        if connection is not None:
            return connection
        host, port = parse_address(address)
        limit_s = self.hub.limits.connect_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                _, made = await self.hub.loop.create_connection(
                    lambda: Connection(self.hub, self._chain, address), host, port
                )
        except TimeoutError:
            raise ConnectFailed(address, f"no connection within {limit_s:g} s") from None
        except OSError as error:
            raise ConnectFailed(address, f"no connection: {error.strerror or error}") from error
        other = self._open.get(address)
        if other is not None:  # opened by another task meanwhile
            made.close("another connection to this address was made first")
            return other
        self._open[address] = made
        made.on_close(lambda closed: self._forget(address, closed))
        return made

    def connection(self, address: str) -> Connection | None:
        """Return the connection to an address if one is open."""
        return self._open.get(address)

    async def close(self) -> None:
        """Close all connections; requests in flight fail with Closed."""
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
            # A timer that has fired is not `cancelled`: `connected` would still send the request.
            waiting_list.remove(waiting)
            callback(TimedOut(address, f"no connection within {timeout_ms} ms"))

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
            waiting.connected(connection, now_ns)

    def _fail_waiting(self, address: str, error: RemotingError) -> None:
        for waiting in self._waiting.pop(address, ()):
            waiting.fail(error)

    async def _connect_and_send(self, address: str, command: RemotingCommand) -> None:
        try:
            connection = await self.connect(address)
        except ConnectFailed as error:
            _log.info("oneway_request_lost", address=address, code=command.code, reason=error.reason)
            return
        connection.oneway(command)

    def _forget(self, address: str, connection: Connection) -> None:
        if self._open.get(address) is connection:
            del self._open[address]


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`; raises ConnectFailed for any other form."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConnectFailed(address, "an address is written host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)

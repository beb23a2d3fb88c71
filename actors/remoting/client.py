"""RemotingClient: asks other processes, over one connection an address."""

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
    """A request whose connection is still being made."""

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
    """Connections by address (`host:port`, `[v6]:port`), made when first needed and again after they end.

    What a peer asks of us runs through `table`. Lives on one event loop.
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
        """The peer's answer, whatever its code; raises ConnectFailed, TimedOut or Closed."""
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
        """The peer's answer where it is SUCCESS; raises Refused with its code and remark where it is not."""
        response = await self.invoke(address, command, timeout_ms)
        if response.code != 0:
            raise Refused(response.code, response.remark or "no reason given")
        return response

    def invoke_callback(
        self, address: str, command: RemotingCommand, timeout_ms: int, callback: Callback
    ) -> None:
        """Send; the callback gets the answer or a RemotingError, once. No task and no future is made for
        it.
        """
        connection = self._open.get(address)
        if connection is not None:
            connection.call(command, timeout_ms, callback)
        elif self._is_closed:
            callback(Closed(address, "this client has been closed"))
        else:
            self._wait_for_connection(address, command, timeout_ms, callback)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send without wanting an answer; where no connection is open one is made, and the request may be
        lost.
        """
        connection = self._open.get(address)
        if connection is not None:
            connection.oneway(command)
        elif not self._is_closed:
            self.hub.spawn(self._connect_and_send(address, command))

    async def connect(self, address: str) -> Connection:
        """The connection to this address, made now where there is none; raises ConnectFailed."""
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
        if other is not None:  # made meanwhile by somebody else
            made.close("another connection to this address was made first")
            return other
        self._open[address] = made
        made.on_close(lambda closed: self._forget(address, closed))
        return made

    def connection(self, address: str) -> Connection | None:
        """The connection to this address, where one is open."""
        return self._open.get(address)

    async def close(self) -> None:
        """Close all connections; requests under way fail with Closed."""
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
            # The timer has fired, not been cancelled: `connected` would find it so and send after all.
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
            _log.info("oneway_lost", address=address, code=command.code, reason=error.reason)
            return
        connection.oneway(command)

    def _forget(self, address: str, connection: Connection) -> None:
        if self._open.get(address) is connection:
            del self._open[address]


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises ConnectFailed where it is neither."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConnectFailed(address, "an address is written host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)

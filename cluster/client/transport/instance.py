"""ClientInstance: connections, routes, heartbeats and background tasks of a client."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from actors.supervisor import Supervisor
from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers
from actors.transport.limits import RemotingLimits
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import HeartbeatData
from actors.wire.bodies.routes import MASTER_ID
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError, TimedOut
from cluster.client.config import MIB, ClientConfig
from cluster.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    DeadlineExceeded,
    refused,
)
from cluster.client.transport.hooked_calls import HookedRemotingClient
from cluster.client.transport.moved_masters import CHECK_MS, MovedMasters
from cluster.client.transport.route_cache import RouteCache
from store.common.clock import NS_PER_MS, Clock, SystemClock
from store.common.logs import get_logger

_log = get_logger(__name__)

# Large enough that a client keeps reading acknowledgements while large sends are buffered.
LIMITS = RemotingLimits(high_water_bytes=64 * MIB)

_sequence = itertools.count()


def local_address() -> str:
    """Return the IPv4 address of this machine's default route; 127.0.0.1 if there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation range: UDP connect sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def unique_client_id(instance_name: str = "") -> str:
    """Return a unique client id (RocketMQ `ip@instanceName`).

    Two consumers with the same id would be assigned the same queues.
    """
    # Containers may have the same address and process id, and start in the same millisecond.
    name = instance_name or str(os.getpid())
    return f"{local_address()}@{name}#{next(_sequence)}#{secrets.token_hex(6)}"


Heartbeat = Callable[[], HeartbeatData]


class ClientInstance:
    """Connections, routes and background tasks of one client. Built and used on one event loop."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock | None = None,
        auto_create_queues: int = 0,
        table: RequestTable | None = None,
    ) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.client_id = unique_client_id(config.instance_name)
        hooks, tls = config.call_hooks, config.load_tls()
        signer = config.request_signer()
        self.remoting = (
            HookedRemotingClient(self.clock, table, LIMITS, hooks, tls, signer)
            if hooks
            else RemotingClient(self.clock, table, LIMITS, tls=tls, signer=signer)
        )
        self.nameservers = Nameservers(
            self.remoting, config.addresses, config.request_timeout_ms, explains=True
        )
        self.routes = RouteCache(
            self.nameservers,
            self.clock,
            sticky_ms=config.sticky_broker_ms,
            auto_create_queues=auto_create_queues,
        )
        self.moved_masters = MovedMasters(self.routes, config.addresses, self.clock)
        self.loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._suspects: set[str] = set()
        self.supervisor = Supervisor(self.clock, client=self.client_id)
        self.is_closed = False
        self._before_close: list[Callable[[], Awaitable[None]]] = []
        self._closing: asyncio.Task[None] | None = None

    def before_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await `close()` at the start of `close`, while requests can still be sent. It must not raise."""
        self._before_close.append(close)

    def check_loop(self) -> None:
        """Raise ClientClosed if the running event loop is not the one that opened the client."""
        if asyncio.get_running_loop() is not self.loop:
            raise ClientClosed(
                "this client was opened on another event loop: create one client for each event loop"
            )

    def close_later(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `close()` on the event loop of the client. May be called in any thread, also by a finalizer."""

        def start() -> None:
            # This must not be a task of the instance, because closing the instance cancels its tasks.
            self._closing = self.loop.create_task(close(), name="close")

        with suppress(RuntimeError):  # the loop is closed, and the client with it
            self.loop.call_soon_threadsafe(start)

    @property
    def is_orphan(self) -> bool:
        """Return True if the event loop of the client is closed, and the client with it."""
        return self.loop.is_closed()

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return self.clock.monotonic_ns() // NS_PER_MS

    def spawn(
        self, work: Coroutine[Any, Any, Any], name: str, *, is_awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run `work` in a task, which `close` cancels.

        Its error is logged, unless `is_awaited` says that the caller awaits the task.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard if is_awaited else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("client_task_failed", task=task.get_name(), client=self.client_id, exc_info=error)

    def start_route_refresh(self) -> None:
        """Start to refresh all cached routes every `route_refresh_ms`."""
        self.supervisor.every("route-refresh", lambda: self.config.route_refresh_ms, self.routes.refresh_all)

    def start_moved_masters(self) -> None:
        """Start to fail requests that wait for a former master which does not respond."""
        self.moved_masters.watch(self.remoting)
        self.supervisor.every("moved-masters", lambda: CHECK_MS, self.moved_masters.check)

    def start_heartbeats(self, heartbeat: Heartbeat, topics: Callable[[], list[str]]) -> None:
        """Start to send `heartbeat()` to all brokers of `topics()` every `heartbeat_ms`."""

        async def beat() -> None:
            await self.send_heartbeats(heartbeat(), topics())

        self.supervisor.every("heartbeat", lambda: self.config.heartbeat_ms, beat)

    async def send_heartbeats(self, heartbeat: HeartbeatData, topics: list[str]) -> None:
        """Send `heartbeat` to all brokers of `topics` concurrently. A failure is logged.

        A slave gets it if the route has no master.
        """
        body = heartbeat.encode()
        addresses: set[str] = set()
        for topic in topics:
            route = self.routes.peek(topic)
            if route is not None:
                addresses.update(filter(None, map(route.replica, route.brokers())))

        async def beat(address: str) -> None:
            try:
                await self.invoke(address, RemotingCommand(RequestCode.HEART_BEAT, body=body))
            except ClientError as error:
                _log.info("heartbeat_failed", broker=address, error=str(error))

        await asyncio.gather(*map(beat, sorted(addresses)))

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Send `command` and return the response, whatever its code.

        If the broker cannot be reached, or does not serve the request now, its routes are refreshed in the
        background: another replica may be its master.

        Raises BrokerUnreachable, DeadlineExceeded, ClientClosed.
        """
        if self.is_closed:
            raise ClientClosed("the client is closed: create a new one")
        timeout_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            response = await self.remoting.invoke(address, command, timeout_ms)
        except RemotingError as error:
            self._refresh_routes_of(address)
            raise self.client_error(error) from error
        if response.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._refresh_routes_of(address)
        return response

    def _refresh_routes_of(self, address: str) -> None:
        """Refresh the routes that have a replica at `address`, in the background, once at a time."""
        if address not in self._suspects and not self.is_closed:
            self._suspects.add(address)
            refresh = self.spawn(self.routes.refresh_of(address), f"routes of {address}")
            refresh.add_done_callback(lambda _: self._suspects.discard(address))

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Send `command` and return its successful response.

        Raises as `request`, and the class of BrokerRefused that matches any other response code.
        """
        response = await self.request(address, command, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, response.remark, address)
        return response

    async def prove(self, address: str) -> None:
        """Let the broker at an address prove that it knows the key of this client, if the client has one.

        Raises as `invoke`.
        """
        try:
            refusal = await self.remoting.prove(address, self.config.request_timeout_ms)
        except RemotingError as error:
            raise self.client_error(error) from error
        if refusal is not None:
            raise refused(refusal.code, refusal.remark, address)

    def client_error(self, error: RemotingError) -> ClientError:
        """Return the ClientError that corresponds to `error`."""
        if self.is_closed:
            return ClientClosed("the client was closed before the response arrived")
        if isinstance(error, TimedOut):
            return DeadlineExceeded(str(error))
        return BrokerUnreachable(str(error))

    def master_of(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker's master. Raises BrokerUnreachable if the route has no master."""
        route = self.routes.peek(topic)
        address = route.master(broker_name) if route is not None else None
        if address is None:
            raise BrokerUnreachable(
                f"the route of topic {topic!r} has no master of broker {broker_name!r}: is it running?"
            )
        return address

    def replica_of(self, topic: str, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of a replica of a broker: this one, else that of the lowest id.

        Raises BrokerUnreachable if the route has no replica.
        """
        route = self.routes.peek(topic)
        address = route.replica(broker_name, broker_id) if route is not None else None
        if address is None:
            raise BrokerUnreachable(
                f"the route of topic {topic!r} has no master of broker {broker_name!r}, and no slave: "
                "is it running?"
            )
        return address

    async def close(self) -> None:
        """Stop the tasks and close the connections. Pending calls raise ClientClosed."""
        if self.is_closed:
            return
        for close in self._before_close:
            await close()
        self._before_close.clear()
        self.is_closed = True
        await self.supervisor.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.remoting.close()

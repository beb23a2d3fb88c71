"""RouteCache: caches and refreshes the routes of a client's topics."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from actors.transport.clients.nameservers import Nameservers
from actors.wire.bodies.routes import PERM_INHERIT
from actors.wire.codes import ResponseCode
from cluster.client.errors import ClientError, TopicNotFound, nameserver_errors
from cluster.client.transport.topic_route import QueueShare, TopicRoute, keep_departed, route_of
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

AUTO_CREATE_TOPIC = "TBW102"
"""RocketMQ's template topic: brokers that create topics automatically register it."""

_log = get_logger(__name__)


class RouteCache:
    """The routes of one client by topic. Used on one event loop."""

    def __init__(
        self,
        nameservers: Nameservers,
        clock: Clock,
        *,
        sticky_ms: int,
        auto_create_queues: int = 0,
    ) -> None:
        """Create an empty cache.

        Args:
            nameservers: The nameservers that provide the routes.
            clock: Source of time.
            sticky_ms: How long the queues of a broker that left the routes are kept.
            auto_create_queues: If greater than 0, an unknown topic gets a route with this many queues, and
                the first send creates the topic (producers).
        """
        self._nameservers = nameservers
        self._clock = clock
        self._sticky_ms = sticky_ms
        self._auto_create_queues = auto_create_queues
        self._routes: dict[str, TopicRoute] = {}
        self._under_way: dict[str, asyncio.Task[TopicRoute]] = {}

    def topics(self) -> list[str]:
        """Return the topics whose routes are cached."""
        return list(self._routes)

    def peek(self, topic: str) -> TopicRoute | None:
        """Return the cached route of `topic`, or None."""
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRoute:
        """Return the cached route of `topic`; fetch it if it is not cached.

        Raises TopicNotFound, NameserverUnreachable.
        """
        route = self._routes.get(topic)
        return route if route is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Fetch and cache the route of `topic`. Concurrent calls share one request. Raises as `get`."""
        task = self._under_way.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._under_way[topic] = task
            task.add_done_callback(lambda done: self._forget(topic, done))
        return await asyncio.shield(task)

    def _forget(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._under_way.pop(topic, None)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: all waiters may be gone

    async def refresh_or_keep(self, topic: str) -> None:
        """Refresh the route of `topic`. If that fails, keep the cached route and ignore the error."""
        with suppress(ClientError):
            await self.refresh(topic)

    async def refresh_all(self) -> None:
        """Refresh all cached routes. If one fails, its cached route is kept and the error is logged."""
        for topic in list(self._routes):
            try:
                await self.refresh(topic)
            except ClientError as error:
                _log.warning("route_refresh_failed", topic=topic, error=str(error))

    async def refresh_of(self, address: str) -> None:
        """Refresh the routes that have a replica at `address`, one after another; keep those that fail."""
        for topic, route in list(self._routes.items()):
            if any(address in replicas.values() for replicas in route.addresses.values()):
                await self.refresh_or_keep(topic)

    async def _fetch(self, topic: str) -> TopicRoute:
        try:
            now = await self._lookup(topic)
        except TopicNotFound:
            before = self._routes.get(topic)
            if before is None and not self._auto_create_queues:
                raise
            if before is None or before.creates:
                now = await self._route_for_creation(topic)
            else:
                # All its brokers restart, or the topic was deleted: keep the old route for a while.
                now = TopicRoute(topic)
        return self._take(topic, now)

    def _take(self, topic: str, now: TopicRoute) -> TopicRoute:
        before = self._routes.get(topic)
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        route = keep_departed(before, now, now_ms, self._sticky_ms)
        if not route.shares:
            self._routes.pop(topic, None)
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic!r} no longer has a route: its brokers are down or it was deleted",
            )
        if route == before:
            return before  # keeps its computed queue lists
        self._routes[topic] = route
        return route

    async def get_from_all(self, topic: str) -> list[TopicRoute | None]:
        """Return the route of `topic` in each nameserver that responds; None if it does not know the topic.

        Raises NameserverUnreachable if no nameserver responds.
        """
        with nameserver_errors():
            routes = await self._nameservers.routes(topic)
        return [route_of(topic, route) if route.queue_datas else None for route in routes]

    async def _lookup(self, topic: str) -> TopicRoute:
        before = self._routes.get(topic)
        known = before.brokers() if before is not None else ()
        with nameserver_errors():
            route = await self._nameservers.route(topic, known)
        if not route.queue_datas:
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no running broker has registered topic {topic!r}: create the topic, or, if it exists, "
                "check the logs of its brokers",
            )
        return route_of(topic, route)

    async def _route_for_creation(self, topic: str) -> TopicRoute:
        """Return a route for a topic that does not exist yet, based on the route of AUTO_CREATE_TOPIC."""
        try:
            template = await self._lookup(AUTO_CREATE_TOPIC)
        except TopicNotFound:
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic!r} does not exist, and the brokers do not create topics automatically: "
                "create it with Admin.create_topic",
            ) from None
        shares = tuple(
            QueueShare(
                share.broker_name,
                min(share.read_queues, self._auto_create_queues),
                min(share.write_queues, self._auto_create_queues),
                share.perm & ~PERM_INHERIT,
            )
            for share in template.shares
            if share.perm & PERM_INHERIT
        )
        return TopicRoute(topic, shares, template.addresses, creates=True)

"""RouteCache: the routes that a client knows, and how they are refreshed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from actors.remoting.bodies.routes import PERM_INHERIT, TopicRouteData
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from cluster.client.errors import BrokerRefused, ClientError, TopicNotFound, refused
from cluster.client.transport.nameservers import Nameservers
from cluster.client.transport.topic_route import QueueShare, TopicRoute, follow, lacks, route_of, union
from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

AUTO_CREATE_TOPIC = "TBW102"

log = get_logger(__name__)


class RouteCache:
    """One client's routes by topic. Lives on one loop."""

    def __init__(
        self,
        nameservers: Nameservers,
        clock: Clock,
        *,
        sticky_ms: int,
        auto_create_queues: int = 0,
    ) -> None:
        """`auto_create_queues` > 0 (producers): an unknown topic gets the route by which sends create it."""
        self._nameservers = nameservers
        self._clock = clock
        self._sticky_ms = sticky_ms
        self._auto_create_queues = auto_create_queues
        self._routes: dict[str, TopicRoute] = {}
        self._under_way: dict[str, asyncio.Task[TopicRoute]] = {}

    def topics(self) -> list[str]:
        """Return the topics whose route is known now."""
        return list(self._routes)

    def peek(self, topic: str) -> TopicRoute | None:
        """Return the route known now."""
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRoute:
        """Return the route known now, else the nameserver's. Raises TopicNotFound, NameserverUnreachable."""
        route = self._routes.get(topic)
        return route if route is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Fetch the route; concurrent calls share one request. Raises as `get` does."""
        task = self._under_way.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic))
            self._under_way[topic] = task
            task.add_done_callback(lambda done: self._forget(topic, done))
        return await asyncio.shield(task)

    def _forget(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._under_way.pop(topic, None)
        if not task.cancelled():
            task.exception()  # retrieved, as every waiter may have left

    async def refresh_or_keep(self, topic: str) -> None:
        """Refresh the route; if that fails, the old one stays and the next attempt reports what is wrong."""
        with suppress(ClientError):
            await self.refresh(topic)

    async def refresh_all(self) -> None:
        """Refresh every known topic; one that fails keeps its old route, and the failure is logged."""
        for topic in list(self._routes):
            try:
                await self.refresh(topic)
            except ClientError as error:
                log.warning("route_refresh_failed", topic=topic, error=str(error))

    async def _ask(self, topic: str) -> TopicRoute:
        try:
            now = await self._lookup(topic)
        except TopicNotFound:
            before = self._routes.get(topic)
            if before is None:
                if not self._auto_create_queues:
                    raise
                now = await self._route_for_creation(topic)
            else:
                # All its brokers left at once, or the topic was deleted: `follow` waits before it decides.
                now = TopicRoute(topic)
        return self._take(topic, now)

    def _take(self, topic: str, now: TopicRoute) -> TopicRoute:
        before = self._routes.get(topic)
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        route = follow(before, now, now_ms, self._sticky_ms)
        if not route.shares:
            self._routes.pop(topic, None)
            raise TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} is in no route any more")
        if route == before:
            return before  # with its cached lists of queues
        self._routes[topic] = route
        return route

    async def known_everywhere(self, topic: str) -> list[TopicRoute | None]:
        """Return the route of each nameserver that responds, None for one that does not know the topic.

        Raises NameserverUnreachable.
        """
        answers = await self._nameservers.request_all(_question(topic))
        return [_decoded(topic, each) if each.code == ResponseCode.SUCCESS else None for each in answers]

    async def _lookup(self, topic: str) -> TopicRoute:
        """Return one nameserver's route, joined with the others' if it lacks a broker that was known."""
        answer = await self._nameservers.ask(_question(topic))
        answers = [answer]
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or (
            answer.code == ResponseCode.SUCCESS and lacks(_decoded(topic, answer), self._routes.get(topic))
        ):
            answers += await self._nameservers.request_others(_question(topic))
        given = [each for each in answers if each.code == ResponseCode.SUCCESS]
        if not given:
            raise _refusal(topic, answer)
        return union([_decoded(topic, each) for each in given])

    async def _route_for_creation(self, topic: str) -> TopicRoute:
        """Return a route for a topic that does not exist yet, made from AUTO_CREATE_TOPIC's."""
        try:
            template = await self._lookup(AUTO_CREATE_TOPIC)
        except TopicNotFound:
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic!r} does not exist, and brokers do not create topics by themselves: "
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
        return TopicRoute(topic, shares, template.addresses)


def _question(topic: str) -> Callable[[], RemotingCommand]:
    return lambda: RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
    )


def _decoded(topic: str, answer: RemotingCommand) -> TopicRoute:
    if answer.code != ResponseCode.SUCCESS:
        raise _refusal(topic, answer)
    return route_of(topic, TopicRouteData.decode(answer.body))


def _refusal(topic: str, answer: RemotingCommand) -> BrokerRefused:
    remark = answer.remark
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        # The nameserver's remark is RocketMQ's, for RocketMQ's tools: two lines, and no remedy.
        remark = (
            f"no broker that is alive has registered topic {topic!r} here: create it, or look at the "
            "brokers' logs if it exists"
        )
    return refused(answer.code, remark)

"""RouteWatch: the queues of subscribed topics, fetched from the nameservers every few seconds.

Queues that have disappeared from the routes are kept for a grace period: a killed broker restarts within
seconds, and a restarted nameserver has no routes until the brokers register. Revoking the queues in the
meantime would only stop their consumers.
"""

from collections.abc import Iterable, Sequence

from actors.remoting.bodies.routes import TopicRouteData
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import GetRouteInfoHeader
from actors.remoting.remoting_errors import Refused, RemotingError
from store.clock import NS_PER_MS, Clock
from store.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)


class RouteWatch:
    """The known queues of topics, with the time when each was last in a route."""

    def __init__(
        self,
        client: RemotingClient,
        nameservers: Sequence[str],
        clock: Clock,
        timeout_ms: int,
        grace_ms: int,
    ) -> None:
        self._client = client
        self._nameservers = list(nameservers)
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._grace_ns = grace_ms * NS_PER_MS
        self._seen_ns: dict[str, dict[MessageQueue, int]] = {}
        self._last = ""

    def knows(self, topic: str) -> bool:
        """Return True if a nameserver has responded for `topic`, even if the topic has no route."""
        return topic in self._seen_ns

    def queues(self, topic: str) -> frozenset[MessageQueue]:
        """Return the known queues of a topic."""
        return frozenset(self._seen_ns.get(topic, ()))

    def forget_all_but(self, topics: Iterable[str]) -> None:
        """Remove all topics that are not in `topics`."""
        kept = frozenset(topics)
        for topic in [topic for topic in self._seen_ns if topic not in kept]:
            del self._seen_ns[topic]

    async def refresh(self, topic: str) -> bool:
        """Fetch the route of a topic; return True if its queues have changed."""
        route = await self._fetch(topic)
        return route is not None and self._take(topic, route)

    def _take(self, topic: str, route: TopicRouteData) -> bool:
        """Record the queues of a route; return True if the queues of the topic have changed."""
        now_ns = self._clock.monotonic_ns()
        is_known = topic in self._seen_ns
        seen = self._seen_ns.setdefault(topic, {})
        before = frozenset(seen)
        for data in route.queue_datas:
            if data.is_readable:
                for queue_id in range(data.read_queue_nums):
                    seen[MessageQueue(topic, data.broker_name, queue_id)] = now_ns
        for queue in [queue for queue, seen_ns in seen.items() if now_ns - seen_ns > self._grace_ns]:
            del seen[queue]
        return not is_known or frozenset(seen) != before

    async def _fetch(self, topic: str) -> TopicRouteData | None:
        """Return the union of the nameservers' routes, or None if none of them responds.

        Nameservers may disagree: a restarted one knows only the brokers that have registered since. Therefore
        they are requested one after another until the union has all brokers that are known here.
        """
        routes: list[TopicRouteData] = []
        wanted = {queue.broker_name for queue in self._seen_ns.get(topic, ())}
        for address in sorted(self._nameservers, key=lambda address: address != self._last):
            route = await self._fetch_from(address, topic)
            if route is None:
                continue
            if not routes:
                self._last = address
            routes.append(route)
            wanted -= {data.broker_name for data in route.queue_datas}
            if route.queue_datas and not wanted:
                break
        return _union(routes) if routes else None

    async def _fetch_from(self, address: str, topic: str) -> TopicRouteData | None:
        """Return the route that one nameserver has, empty if it has none, or None if it does not respond."""
        command = RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic, True).to_ext()
        )
        try:
            response = await self._client.invoke(address, command, self._timeout_ms)
            if response.code == ResponseCode.SUCCESS:
                return TopicRouteData.decode(response.body)
        except (RemotingError, Refused) as error:
            _log.warning("route_fetch_failed", topic=topic, nameserver=address, reason=str(error))
            return None
        return TopicRouteData() if response.code == ResponseCode.TOPIC_NOT_EXIST else None


def _union(routes: Sequence[TopicRouteData]) -> TopicRouteData:
    """Merge routes; each broker's queues are taken from the first route that has the broker."""
    queues = {data.broker_name: data for route in reversed(routes) for data in route.queue_datas}
    return TopicRouteData(list(queues.values()))

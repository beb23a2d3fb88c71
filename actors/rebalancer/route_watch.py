"""RouteWatch: the queues of subscribed topics, fetched from the nameservers every few seconds.

Queues that have disappeared from the routes are kept for a grace period: a killed broker restarts within
seconds, and a restarted nameserver has no routes until the brokers register. Revoking the queues in the
meantime would only stop their consumers.
"""

from collections.abc import Iterable

from actors.transport.clients.nameservers import Nameservers
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)


class RouteWatch:
    """The known queues of topics, with the time when each was last in a route."""

    def __init__(self, nameservers: Nameservers, clock: Clock, grace_ms: int) -> None:
        self._nameservers = nameservers
        self._clock = clock
        self._grace_ns = grace_ms * NS_PER_MS
        self._seen_ns: dict[str, dict[MessageQueue, int]] = {}

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
        known = {queue.broker_name for queue in self._seen_ns.get(topic, ())}
        try:
            route = await self._nameservers.route(topic, known)
        except (RemotingError, Refused) as error:
            _log.warning("route_fetch_failed", topic=topic, error=str(error))
            return False
        return self._take(topic, route)

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

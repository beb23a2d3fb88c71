"""BroadcastingProtocol: group protocol of broadcasting, in which each member consumes all queues.

The members do not coordinate; there is no rebalance.
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.wire.bodies.groups import AssignedQueue, SyncGroupReply
from cluster.client.config import ConsumerConfig
from cluster.client.transport.instance import ClientInstance
from store.message.message_queue import MessageQueue

FIRST, ADDED = 0, 1
"""Generations: FIRST if a queue was in the first known route of its topic, ADDED if it was added later."""


class BroadcastingProtocol:
    """Assigns all readable queues of the subscribed topics to this member."""

    def __init__(
        self, instance: ClientInstance, config: ConsumerConfig, subscriptions: Mapping[str, object]
    ) -> None:
        self._instance = instance
        self._config = config
        self._subscriptions = subscriptions
        self._queues: dict[str, dict[MessageQueue, int]] = {}

    @property
    def sync_interval_ms(self) -> int:
        """Return the interval between two calls of `sync`, in ms."""
        return self._config.sync_interval_ms

    @property
    def commit_interval_ms(self) -> int:
        """Return the interval between two commits of consumed offsets, in ms."""
        return self._config.commit_interval_ms

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply:
        """Grant all readable queues of the subscribed topics, from the cached routes, to this member."""
        assigned = []
        for topic in self._subscriptions:
            route = self._instance.routes.peek(topic)
            if route is None or not route.readable:
                continue
            generation = ADDED if topic in self._queues else FIRST
            known = self._queues.setdefault(topic, {})
            assigned += [AssignedQueue(each, known.setdefault(each, generation)) for each in route.readable]
        return SyncGroupReply(0, assigned, members=[self._instance.client_id])

    async def leave(self) -> None:
        """Do nothing: the group session sends the UNREGISTER_CLIENT request that removes this member."""

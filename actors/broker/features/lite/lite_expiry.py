"""LiteExpiry: removes lite topics that got no message for the time to live, and those of deleted topics.

The messages stay in the log until its retention deletes them. A new message begins a new life of the lite
topic at offset 0, so the offsets of all groups go with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.attributes import LITE_EXPIRATION, is_lite_topic
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.features.lite.lite_groups import LiteGroups
from actors.broker.features.lite.lite_sessions import LiteSessions
from store.common.clock import Clock
from store.common.logs import get_logger
from store.lite.lite_index import LiteIndex
from store.lite.names import SEPARATOR

_log = get_logger(__name__)

REPLICA_MS: Final = 1_800_000
"""Other replicas drop lite topics later than their master, which may have got a message meanwhile."""
DROPPED_MAX: Final = 500
"""So many lite topics are removed in one step, because the event loop serves others too."""
_MINUTE_MS: Final = 60_000


class LiteExpiry:
    """Removes the lite topics of one broker that have expired."""

    def __init__(
        self,
        index: LiteIndex,
        groups: LiteGroups,
        sessions: LiteSessions,
        tables: BrokerTables,
        clock: Clock,
        settings: BrokerSettings,
        is_known: Callable[[], bool],
    ) -> None:
        """Create the object; `is_known` returns True if the index has all messages in the log."""
        self._index = index
        self._groups = groups
        self._sessions = sessions
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._is_known = is_known
        self._started_ms = clock.wall_ms()
        self._took_over = False
        tables.subscribe(self._topic_changed, lambda group: None)

    async def start(self) -> None:
        """Take over from another master: what it has removed or would have removed is removed at once."""
        self._took_over = True
        await self.tick()

    async def stop(self) -> None:
        """Do nothing: the last sweep has ended."""

    async def tick(self) -> None:
        """Remove the lite topics that have expired by now, a few at a time. Raises OSError."""
        if self._took_over and self._is_known():
            self._took_over = False
            for number, (name, group) in enumerate(self._tables.offsets.lite_topics(), 1):
                topic = self._tables.topics.find(name[0])
                if topic is not None and is_lite_topic(topic) and self._index.max_offset(*name) == 0:
                    self._sessions.orders.drop(group, *name)
                if number % DROPPED_MAX == 0:
                    await asyncio.sleep(0)
        await self._sweep(0)

    async def tick_of_replica(self) -> None:
        """Remove the lite topics that the master has removed by now. Raises OSError."""
        await self._sweep(REPLICA_MS)

    async def _sweep(self, later_ms: int) -> None:
        now_ms, least_ms = self._clock.wall_ms(), self._settings.min_lite_ttl_ms
        if now_ms - self._started_ms < least_ms:
            return
        limits_ms: dict[str, int] = {}
        for topic in self._tables.topics.table.topics.values():
            minutes = int(topic.attributes.get(LITE_EXPIRATION, -1))
            if is_lite_topic(topic) and minutes >= 0:
                limits_ms[topic.topic_name] = now_ms - max(minutes * _MINUTE_MS, least_ms) - later_ms
        count = 0
        for count, key in enumerate(self._index.expired(limits_ms), 1):
            self._drop(*key.split(SEPARATOR))
            if count % DROPPED_MAX == 0:
                await asyncio.sleep(0)
        if count:
            _log.info("lite_topics_expired", count=count)

    def _topic_changed(self, topic: str) -> None:
        config = self._tables.topics.find(topic)
        if config is not None and is_lite_topic(config):
            self._index.add_topic(topic)
        elif topic and config is None:
            for name in self._index.names(topic):
                self._drop(topic, name)

    def _drop(self, topic: str, name: str) -> None:
        self._index.drop(topic + SEPARATOR + name)
        if self._index.max_offset(topic, name) == 0:  # else it has a message that is not dispatched yet
            for group in self._groups.of_topic(topic):
                self._sessions.orders.drop(group, topic, name)

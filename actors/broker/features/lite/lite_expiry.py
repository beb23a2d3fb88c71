"""LiteExpiry: removes lite topics that got no message for the time to live, and those of deleted topics.

The messages stay in the log until its retention deletes them. A new message begins a new life of the lite
topic at offset 0, so the offsets of all groups go with it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from actors.broker.core.metadata.attributes import LITE_EXPIRATION, is_lite_topic
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.features.lite.lite_groups import LiteGroups
from actors.broker.features.lite.lite_sessions import LiteSessions
from store.common.clock import Clock
from store.common.logs import get_logger
from store.lite.lite_index import LiteIndex
from store.lite.names import SEPARATOR

_log = get_logger(__name__)

CHECK_MS: Final = 120_000
"""RocketMQ's liteTtlCheckInterval."""
LEAST_MS: Final = 900_000
"""RocketMQ's minLiteTTl: no lite topic expires sooner, nor before the broker has been up for this time."""
DROPPED_MAX: Final = 500
"""So many lite topics are removed in one step, because the event loop serves others too."""
_MINUTE_MS: Final = 60_000


class LiteExpiry:
    """Removes the lite topics of one broker that have expired."""

    def __init__(
        self, index: LiteIndex, groups: LiteGroups, sessions: LiteSessions, tables: BrokerTables, clock: Clock
    ) -> None:
        self._index = index
        self._groups = groups
        self._sessions = sessions
        self._topics = tables.topics
        self._clock = clock
        self._started_ms = clock.wall_ms()
        tables.subscribe(self._topic_changed, lambda group: None)

    async def tick(self) -> None:
        """Remove the lite topics that have expired by now, a few at a time. Raises OSError."""
        now_ms = self._clock.wall_ms()
        if now_ms - self._started_ms < LEAST_MS:
            return
        limits_ms: dict[str, int] = {}
        for topic in self._topics.table.topics.values():
            minutes = int(topic.attributes.get(LITE_EXPIRATION, -1))
            if is_lite_topic(topic) and minutes >= 0:
                limits_ms[topic.topic_name] = now_ms - max(minutes * _MINUTE_MS, LEAST_MS)
        count = 0
        for count, key in enumerate(self._index.expired(limits_ms), 1):
            self._drop(*key.split(SEPARATOR))
            if count % DROPPED_MAX == 0:
                await asyncio.sleep(0)
        if count:
            _log.info("lite_topics_expired", count=count)

    def _topic_changed(self, topic: str) -> None:
        if topic and self._topics.find(topic) is None:
            for name in self._index.names(topic):
                self._drop(topic, name)

    def _drop(self, topic: str, name: str) -> None:
        self._index.drop(topic + SEPARATOR + name)
        if self._index.max_offset(topic, name) == 0:  # else it has a message that is not dispatched yet
            for group in self._groups.of_topic(topic):
                self._sessions.orders.drop(group, topic, name)

"""LiteLags: how far groups are behind in lite topics, for administrators and as figures.

Of a group, the lite topics count in which it has a committed offset, as in RocketMQ. The figures are computed
in slices, at most every KEPT_MS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metric_labels import GROUP_LABELS, of_group
from actors.broker.features.lite.subscriptions import LiteGroup
from actors.host.figures import Figure, Kind, Sample
from store.common.clock import NS_PER_MS, Clock
from store.lite.lite_index import LiteIndex, lmq_name
from store.lite.names import SEPARATOR
from store.message.validate import LMQ_TOPIC_PREFIX

UNKNOWN: Final = -1
KEPT_MS: Final = 10_000
_NAMES_PER_SLICE: Final = 500
_LMQ: Final = f"{LMQ_TOPIC_PREFIX}{SEPARATOR}"


class LiteLag(NamedTuple):
    """How far a group is behind in one lite topic."""

    messages: int
    name: str
    oldest_ms: int
    """Store time of the first message without ack; UNKNOWN without one."""

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's JSON object."""
        return {
            "liteTopic": self.name,
            "lagCount": self.messages,
            "earliestUnconsumedTimestamp": self.oldest_ms,
        }


class LiteLags:
    """The lags in the lite topics of one broker."""

    def __init__(
        self, index: LiteIndex, tables: BrokerTables, clock: Clock, is_end_known: Callable[[], bool]
    ) -> None:
        self._index = index
        self._is_end_known = is_end_known
        self._tables = tables
        self._clock = clock
        self._next_ns = 0
        self._sums: dict[tuple[str, str], LiteLag] = {}

    def of(self, topic: str, name: str, committed: int) -> LiteLag:
        """Return the lag of a group in a lite topic, from its committed offset."""
        count = max(self._index.max_offset(topic, name) - committed, 0)
        first = self._index.read(topic, name, committed, 1) if count else ()
        return LiteLag(count, name, first[0].stored_ms if first else UNKNOWN)

    def consumed(self, of: LiteGroup | None = None) -> Iterator[tuple[str, str, LiteLag]]:
        """Yield topic, group and lag of each lite topic in which a group, or any, has a committed offset."""
        prefix, suffix = (_LMQ, "") if of is None else (lmq_name(of.topic, ""), f"@{of.name}")
        for key, committed in list(self._tables.offsets.table.lite.items()):
            if key.startswith(prefix) and key.endswith(suffix):
                queue, _, group = key.rpartition("@")
                topic, _, name = queue.removeprefix(_LMQ).partition(SEPARATOR)
                yield topic, group, self.of(topic, name, committed)

    async def refresh(self) -> None:
        """Compute the figures, unless the last ones are to be kept."""
        if self._clock.monotonic_ns() < self._next_ns:
            return
        sums: dict[tuple[str, str], LiteLag] = {}
        if not self._is_end_known():  # unknown, not the lag behind a lower bound of the end
            self._sums = sums
            return
        for number, (topic, group, lag) in enumerate(self.consumed(), 1):
            count, _, oldest_ms = sums.get((topic, group), LiteLag(0, "", UNKNOWN))
            if lag.messages:
                oldest_ms = min(lag.oldest_ms, oldest_ms) if oldest_ms != UNKNOWN else lag.oldest_ms
            sums[topic, group] = LiteLag(count + lag.messages, "", oldest_ms)
            if number % _NAMES_PER_SLICE == 0:
                await asyncio.sleep(0)
        self._sums = sums
        self._next_ns = self._clock.monotonic_ns() + KEPT_MS * NS_PER_MS

    def figures(self) -> Sequence[Figure]:
        """Return the figures: lags by topic and group, and the number of lite topics."""
        topics = self._tables.topics

        def messages() -> Iterator[Sample]:
            for (topic, group), lag in self._sums.items():
                yield Sample(of_group(topics, topic, group), lag.messages)

        def ages() -> Iterator[Sample]:
            now_ms = self._clock.wall_ms()
            for (topic, group), lag in self._sums.items():
                if not lag.messages or lag.oldest_ms != UNKNOWN:  # unknown is not 0
                    age_ms = max(now_ms - lag.oldest_ms, 0) if lag.messages else 0
                    yield Sample(of_group(topics, topic, group), age_ms)

        return (
            Figure(
                "lite_topics", Kind.GAUGE, "", lambda: len(self._index), "Lite topics that have messages.",
                is_described=False, metric="raymq_lite_topics",
            ),
            Figure(
                "lite_lag_by_group", Kind.GAUGE, "", messages,
                "Messages of lite topics that the group has consumed and not acknowledged.", GROUP_LABELS,
                metric="raymq_lite_lag_messages", refresh=self.refresh,
            ),
            Figure(
                "lite_lag_latency_by_group", Kind.GAUGE, "ms", ages,
                "Age of the oldest of these messages, to the second.", GROUP_LABELS,
                metric="raymq_lite_lag_latency_seconds", refresh=self.refresh,
            ),
        )  # fmt: skip

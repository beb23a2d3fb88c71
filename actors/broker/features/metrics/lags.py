"""Lags: how many messages each consumer group is behind, and how old the first one is.

    queue   | … acknowledged … | in flight | ready … | end
                                 ▲           ▲
                   lag latency ──┘           └── queueing latency: age of the first message there

`GroupProgress` decides which groups and topics count, and where a group without a committed offset begins.
Groups without connected members are included, unlike in RocketMQ: their lag grows, so an alert must see it.
If the begin of one queue is unknown, so is the lag of the topic, and it has no sample.

Store times ascend with the position in the CommitLog. So of the first messages of all queues, the one with
the lowest position is the oldest, and only its record is read. Positions are read from the files of the
queues, of which a broker may have more than it can keep open. So a position is kept until the group moves,
and each time at most READS_MAX are read for each topic and group, of the queues with most messages, and fewer
if there are many groups: a queue that stands still is soon known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

from actors.broker.core.group.group_progress import GroupProgress
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.attributes import is_priority_topic
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metric_labels import GROUP_LABELS, of_group
from actors.host.figures import Figure, Kind, Sample
from actors.wire.header import I64_MAX
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.message.topic_config import TopicConfig
from store.message_store import MessageStore
from store.store_errors import StoreError

LAGS_KEPT_NS = 1_000 * NS_PER_MS
"""Clients that read the page within this time get the same lags, and within KEPT_FACTOR times the duration of
the computation, at most LAGS_KEPT_MAX_NS: frequent clients of a broker with many queues must not slow it."""
KEPT_FACTOR = 100
LAGS_KEPT_MAX_NS = 10 * LAGS_KEPT_NS
SLICE_NS = NS_PER_MS
READS_MAX = 4
READS_PER_REFRESH = 400
"""Positions that are read for all groups together, or one for each group if these are more. Each opens a file
and takes about 20 us: with 800 of them, they are two thirds of the time of a page with 20,000 queues."""
_NOWHERE = I64_MAX
QUEUES_PER_CHECK = 32
"""Queues between two looks at the clock."""


class Lag(NamedTuple):
    """The messages of one topic that a group has not acknowledged."""

    topic: str
    group: str
    in_flight: int
    """Delivered to a member."""
    ready: int
    """Not delivered yet."""
    unacknowledged_ms: int | None
    """Store time of the oldest message; None without one, or if its record cannot be read."""
    ready_ms: int | None
    """The same of the oldest message that is not delivered yet."""
    by_priority: Sequence[int | None] | None
    """The store time of the oldest unacknowledged message of each priority, 0 if all are acknowledged; None
    if the topic has no priorities."""


Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""
_Rest = tuple[int, int, int]
"""The messages of a queue from an offset on: their number, the queue id, and the offset."""


class Lags:
    """The lags of all groups on one broker, computed in slices by `refresh`."""

    def __init__(
        self, store: MessageStore, reads: Reads, tables: BrokerTables, progress: GroupProgress, clock: Clock
    ) -> None:
        self._store = store
        self._reads = reads
        self._tables = tables
        self._progress = progress
        self._clock = clock
        self._lock = asyncio.Lock()
        self._computed: list[Lag] = []
        self._next_ns = 0
        self._slice_ns = 0
        self._reads_max = READS_MAX
        # CommitLog positions; those of the next refresh are in the second table.
        self._known: dict[Place, int] = {}
        self._seen: dict[Place, int] = {}

    def __iter__(self) -> Iterator[Lag]:
        return iter(self._computed)

    async def refresh(self) -> None:
        """Compute the lags, unless the last ones are to be kept."""
        async with self._lock:
            begin_ns = self._slice_ns = self._clock.monotonic_ns()
            if begin_ns < self._next_ns:
                return
            if not self._store.positions.is_end_known:  # unknown, not the lag behind a lower bound of the end
                self._computed = []
                return
            computed, by_group = [], self._progress.topics_by_group()
            rows = [(topic, group) for group, topics in by_group.items() for topic in topics]
            self._reads_max = max(min(READS_MAX, READS_PER_REFRESH // max(len(rows), 1)), 1)
            for topic, group in rows:
                await self._pause()
                config = self._tables.topics.find(topic)
                if config is not None and self._progress.keeps_offsets(group):
                    lag = await self._lag(config, group)
                    computed += [] if lag is None else [lag]
            self._known, self._seen = self._seen, {}
            self._computed, end_ns = computed, self._clock.monotonic_ns()
            kept_ns = max((end_ns - begin_ns) * KEPT_FACTOR, LAGS_KEPT_NS)
            self._next_ns = end_ns + min(kept_ns, LAGS_KEPT_MAX_NS)

    async def _lag(self, config: TopicConfig, group: str) -> Lag | None:
        topic, queues = config.topic_name, config.read_queue_nums
        offsets, in_flight, ready = self._tables.offsets, 0, 0
        committed, pulled, claimed = offsets.of_group(group, topic), offsets.pulled, offsets.claimed
        acknowledged_to: list[_Rest] = []
        delivered_to: list[_Rest] = []
        for queue_id, end in enumerate(self._store.max_offsets(topic, queues)):
            if queue_id % QUEUES_PER_CHECK == QUEUES_PER_CHECK - 1:
                await self._pause()
            acknowledged = committed.get(queue_id)
            if acknowledged is None and (acknowledged := await self._begin(group, topic, queue_id)) is None:
                return None
            if claimed:
                in_flight += claimed[topic, group, queue_id]
            if acknowledged >= end:
                continue
            acknowledged_to.append((end - acknowledged, queue_id, acknowledged))
            delivered = pulled.get((topic, group, queue_id), acknowledged)
            if delivered < acknowledged:
                delivered = acknowledged
            elif delivered > end:
                delivered = end
            in_flight += delivered - acknowledged
            ready += end - delivered
            if delivered < end:
                delivered_to.append((end - delivered, queue_id, delivered))
        unacknowledged_ms = await self._oldest_ms(topic, acknowledged_to)
        ready_ms = await self._oldest_ms(topic, delivered_to) if in_flight else unacknowledged_ms
        by_priority: list[int | None] | None = None
        if is_priority_topic(config):
            by_priority = [0] * queues
            for rest in acknowledged_to:
                by_priority[rest[1]] = await self._oldest_ms(topic, (rest,))
        return Lag(topic, group, in_flight, ready, unacknowledged_ms, ready_ms, by_priority)

    async def _begin(self, group: str, topic: str, queue_id: int) -> int | None:
        await self._pause()
        try:
            return await self._reads.read(partial(self._progress.begin, group, topic, queue_id))
        except (StoreError, Refused):
            return None

    async def _oldest_ms(self, topic: str, rests: Sequence[_Rest]) -> int | None:
        """Return the store time of the oldest of the first messages of the rests; None if it is unknown."""
        first, known, seen, lowest = self._store.positions.min, self._known, self._seen, _NOWHERE
        unknown: list[_Rest] = []
        for number, rest in enumerate(rests):
            if number % QUEUES_PER_CHECK == QUEUES_PER_CHECK - 1:
                await self._pause()
            place = (topic, rest[1], rest[2])
            position = known.get(place, -1)
            if position < first:
                unknown.append(rest)
                continue
            seen[place] = position
            if position < lowest:
                lowest = position
        for _, queue_id, offset in nlargest(self._reads_max, unknown, itemgetter(0)):
            found = await self._position((topic, queue_id, offset))
            if found is not None and first <= found < lowest:
                lowest = found
        if lowest == _NOWHERE:
            return None
        try:
            return await self._reads.read(partial(self._store.record_timestamp, lowest))
        except (StoreError, Refused):  # reported as unknown
            return None

    async def _position(self, place: Place) -> int | None:
        """Return the CommitLog position of the first message at or after a queue offset."""
        if place not in self._seen:
            await self._pause()
            try:
                position = await self._reads.read(partial(self._read_position, *place))
            except (StoreError, Refused):
                position = None
            if position is None:
                return None
            self._seen[place] = position
        return self._seen[place]

    def _read_position(self, topic: str, queue_id: int, offset: int) -> int | None:
        first = max(offset, self._store.min_offset(topic, queue_id))
        units = self._store.units(topic, queue_id, first, 1)
        return units[0].physical_offset if units else None

    async def _pause(self) -> None:
        """Let other tasks run if the present slice has taken SLICE_NS."""
        if self._clock.monotonic_ns() - self._slice_ns >= SLICE_NS:
            await asyncio.sleep(0)
            self._slice_ns = self._clock.monotonic_ns()


def lag_figures(lags: Lags, tables: BrokerTables, clock: Clock) -> Sequence[Figure]:
    """Return the figures of the lag by topic and group."""

    def messages(amount: Callable[[Lag], int]) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            for lag in lags:
                yield Sample(of_group(tables.topics, lag.topic, lag.group), amount(lag))

        return samples

    def ages(
        count: Callable[[Lag], int], stored_ms: Callable[[Lag], int | None]
    ) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            now_ms = clock.wall_ms()
            for lag in lags:
                first_ms = stored_ms(lag)
                # Unknown is not 0: the sample is omitted.
                if first_ms is not None or not count(lag):
                    age_ms = 0 if first_ms is None else max(now_ms - first_ms, 0)
                    yield Sample(of_group(tables.topics, lag.topic, lag.group), age_ms)

        return samples

    def all_of(lag: Lag) -> int:
        return lag.in_flight + lag.ready

    def figure(name: str, unit: str, read: Callable[[], Iterator[Sample]], metric: str, text: str) -> Figure:
        return Figure(name, Kind.GAUGE, unit, read, text, GROUP_LABELS, metric=metric, refresh=lags.refresh)

    return (
        figure(
            "lag_by_group", "", messages(all_of), "rocketmq_consumer_lag_messages",
            "Messages that the group has not acknowledged.",
        ),
        figure(
            "ready_by_group", "", messages(lambda lag: lag.ready), "rocketmq_consumer_ready_messages",
            "Messages that were not delivered to the group.",
        ),
        figure(
            "in_flight_by_group", "", messages(lambda lag: lag.in_flight),
            "rocketmq_consumer_inflight_messages",
            "Messages that were delivered to the group and not acknowledged.",
        ),
        figure(
            "lag_latency_by_group", "ms", ages(all_of, lambda lag: lag.unacknowledged_ms),
            "rocketmq_consumer_lag_latency_milliseconds",
            "Age of the oldest message that the group has not acknowledged.",
        ),
        figure(
            "queueing_latency_by_group", "ms", ages(lambda lag: lag.ready, lambda lag: lag.ready_ms),
            "rocketmq_consumer_queueing_latency_milliseconds",
            "Age of the oldest message that was not delivered to the group.",
        ),
        Figure(
            "lag_latency_by_priority", Kind.GAUGE, "ms", partial(_ages_by_priority, lags, tables, clock),
            "Age of the oldest message of each priority that the group has not acknowledged.",
            (*GROUP_LABELS, "priority"), metric="raymq_priority_lag_latency_seconds", refresh=lags.refresh,
        ),
    )  # fmt: skip


def _ages_by_priority(lags: Lags, tables: BrokerTables, clock: Clock) -> Iterator[Sample]:
    now_ms = clock.wall_ms()
    for lag in lags:
        for priority, first_ms in enumerate(lag.by_priority or ()):
            if first_ms is not None:  # unknown is not 0
                age_ms = max(now_ms - first_ms, 0) if first_ms else 0
                yield Sample((*of_group(tables.topics, lag.topic, lag.group), str(priority)), age_ms)

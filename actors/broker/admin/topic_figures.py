"""Figures by topic and consumer group, with RocketMQ's names, labels and types.

Groups without connected members are included, unlike in RocketMQ: their lag grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from actors.broker.metadata.tables import BrokerTables
from actors.broker.stats import BrokerStats, Tally
from actors.host.figures import Figure, Kind, Sample
from store.clock import Clock
from store.message.validate import RETRY_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX
from store.message_store import MessageStore

LAGS_KEPT_NS = 1_000_000_000
_LABELS = ("topic", "consumer_group", "is_retry", "is_system")


class Lag(NamedTuple):
    """The messages of one topic that a group has not acknowledged."""

    topic: str
    group: str
    in_flight: int
    """Delivered to a member."""
    ready: int
    """Not delivered yet."""


class Lags:
    """The lags of all groups with committed offsets, computed once for all figures and clients within 1 s."""

    def __init__(self, store: MessageStore, tables: BrokerTables, clock: Clock) -> None:
        self._store = store
        self._tables = tables
        self._clock = clock
        self._computed: list[Lag] = []
        self._computed_ns = -LAGS_KEPT_NS

    def __iter__(self) -> Iterator[Lag]:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._computed_ns < LAGS_KEPT_NS:
            yield from self._computed
            return
        computed = []
        for key, committed in list(self._tables.offsets.table.offsets.items()):
            topic, _, group = key.partition("@")
            if (config := self._tables.topics.find(topic)) is not None:
                computed.append(self._lag(topic, group, committed, config.read_queue_nums))
                yield computed[-1]
        self._computed, self._computed_ns = computed, now_ns

    def _lag(self, topic: str, group: str, committed: Mapping[int, int], queues: int) -> Lag:
        max_offset, pulled = self._store.max_offset, self._tables.offsets.pulled
        in_flight = behind = 0
        for queue_id in range(queues):
            end, acknowledged = max_offset(topic, queue_id), committed.get(queue_id, 0)
            if acknowledged < end:
                behind += end - acknowledged
                in_flight += max(min(pulled.get((topic, group, queue_id), 0), end) - acknowledged, 0)
        return Lag(topic, group, in_flight, behind - in_flight)


def topic_figures(
    store: MessageStore, tables: BrokerTables, stats: BrokerStats, clock: Clock
) -> Sequence[Figure]:
    """Return the figures by topic and group of one broker."""
    lags = Lags(store, tables, clock)

    def labels(topic: str, group: str) -> tuple[str, ...]:
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        is_system = tables.topics.is_system(topic) or group.startswith(SYSTEM_GROUP_PREFIX)
        return topic, group, str(is_retry).lower(), str(is_system).lower()

    def got(amount: Callable[[Tally], int]) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            for (topic, group), tally in list(stats.gets.items()):
                yield Sample(labels(topic, group), amount(tally))

        return samples

    def behind(messages: Callable[[Lag], int]) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            for lag in lags:
                yield Sample(labels(lag.topic, lag.group), messages(lag))

        return samples

    counter, gauge = Kind.COUNTER, Kind.GAUGE
    return (
        Figure(
            "messages_out_by_group", counter, "", got(lambda tally: tally.messages),
            "Messages that consumers got.", _LABELS, metric="rocketmq_messages_out_total",
        ),
        Figure(
            "bytes_out_by_group", counter, "bytes", got(lambda tally: tally.size_bytes),
            "Bytes of the messages that consumers got.", _LABELS, metric="rocketmq_throughput_out_total",
        ),
        Figure(
            "lag_by_group", gauge, "", behind(lambda lag: lag.in_flight + lag.ready),
            "Messages that the group has not acknowledged.", _LABELS, metric="rocketmq_consumer_lag_messages",
        ),
        Figure(
            "ready_by_group", gauge, "", behind(lambda lag: lag.ready),
            "Messages that were not delivered to the group.", _LABELS,
            metric="rocketmq_consumer_ready_messages",
        ),
        Figure(
            "in_flight_by_group", gauge, "", behind(lambda lag: lag.in_flight),
            "Messages that were delivered to the group and not acknowledged.", _LABELS,
            metric="rocketmq_consumer_inflight_messages",
        ),
    )  # fmt: skip

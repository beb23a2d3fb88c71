"""TransactionCounts: open and finished transactions by topic, as metrics with RocketMQ's names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from actors.broker.core.metadata.topics import Topics
from actors.broker.features.transactions.transaction_log import TransactionLog
from actors.host.figures import Buckets, Figure, Kind, Sample, Value
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.message.message import MessageExt
from store.store_errors import StoreError

FINISH_BOUNDS_S = (5.0, 60.0, 600.0, 3600.0, 43_200.0, 86_400.0)


class TransactionCounts:
    """Counts the transactions that producers committed and rolled back, and the time that each was open."""

    def __init__(self, clock: Clock, topics: Topics, log: TransactionLog) -> None:
        self._clock = clock
        self._topics = topics
        self._log = log
        self._open: Mapping[str, int] = {}
        self._committed: Counter[str] = Counter()
        self._rolled_back: Counter[str] = Counter()
        self._open_s: defaultdict[str, Buckets] = defaultdict(partial(Buckets, FINISH_BOUNDS_S))

    def committed(self, topic: str, half: MessageExt) -> None:
        """Count a transaction that was committed; `half` is its message."""
        self._committed[topic] += 1
        self._finished(topic, half)

    def rolled_back(self, topic: str, half: MessageExt) -> None:
        """Count a transaction that was rolled back; `half` is its message."""
        self._rolled_back[topic] += 1
        self._finished(topic, half)

    def _finished(self, topic: str, half: MessageExt) -> None:
        self._open_s[topic].add(max(self._clock.wall_ms() - half.born_timestamp, 0) // 1000)

    def figures(self) -> Sequence[Figure]:
        """Return the figures of the transactions."""

        def times() -> dict[str, Value]:
            return {topic: buckets.histogram for topic, buckets in self._open_s.items()}

        return (
            Figure(
                "open_transactions_by_topic", Kind.GAUGE, "", lambda: self._samples(self._open),
                "Transactions without a decision.", ("topic",),
                metric="rocketmq_half_messages", refresh=self._count_open,
            ),
            Figure(
                "transactions_committed", Kind.COUNTER, "", lambda: self._samples(self._committed),
                "Transactions that producers committed.", ("topic",),
                metric="rocketmq_commit_messages_total",
            ),
            Figure(
                "transactions_rolled_back", Kind.COUNTER, "", lambda: self._samples(self._rolled_back),
                "Transactions that producers rolled back.", ("topic",),
                metric="rocketmq_rollback_messages_total",
            ),
            Figure(
                "transaction_finish_latency", Kind.HISTOGRAM, "s", lambda: self._samples(times()),
                "Seconds (RocketMQ's name says milliseconds) from send to commit or rollback.", ("topic",),
                metric="rocketmq_finish_message_latency_milliseconds",
            ),
        )  # fmt: skip

    async def _count_open(self) -> None:
        finished = dict.fromkeys([*self._committed, *self._rolled_back], 0)
        try:
            self._open = finished | await self._log.count_by_topic()
        except (StoreError, Refused):  # unknown is not 0: there are no samples
            self._open = {}

    def _samples(self, table: Mapping[str, Value]) -> Iterator[Sample]:
        for topic, value in list(table.items()):
            if self._topics.find(topic) is not None:
                yield Sample((topic,), value)

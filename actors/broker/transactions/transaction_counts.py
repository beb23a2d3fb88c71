"""TransactionCounts: the finished transactions by topic, as metrics with RocketMQ's names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from actors.broker.metadata.topics import Topics
from actors.host.figures import Buckets, Figure, Kind, Sample, Value
from store.clock import Clock
from store.message.message import MessageExt

FINISH_BOUNDS_S = (5.0, 60.0, 600.0, 3600.0, 43_200.0, 86_400.0)


class TransactionCounts:
    """Counts the transactions that producers committed and rolled back, and the time that each was open."""

    def __init__(self, clock: Clock, topics: Topics) -> None:
        self._clock = clock
        self._topics = topics
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
        """Return the figures of the finished transactions."""

        def times() -> dict[str, Value]:
            return {topic: buckets.histogram for topic, buckets in self._open_s.items()}

        return (
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

    def _samples(self, table: Mapping[str, Value]) -> Iterator[Sample]:
        for topic, value in list(table.items()):
            if self._topics.find(topic) is not None:
                yield Sample((topic,), value)

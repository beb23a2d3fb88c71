"""PopCounts: the records that POP writes to and reads from the store, as metrics with RocketMQ's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from actors.broker.core.metadata.topics import Topics
from actors.host.figures import Figure, Kind, Sample
from store.message.pop_records import ClaimKey

CHECK_POINT = "CK"
ACK = "ACK"
_PUT_OK = "PUT_OK"
"""The only status: an append that is refused raises, and is repeated."""


class PopCounts:
    """Counts revive records and retries by topic and group. Those of deleted topics are not shown."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._put: Counter[tuple[str, ...]] = Counter()
        self._read: Counter[tuple[str, ...]] = Counter()
        self._retried: Counter[tuple[str, ...]] = Counter()

    def put(self, key: ClaimKey, kind: str) -> None:
        """Count a record of a claim, of `kind` CHECK_POINT or ACK, that was written for the revive topic."""
        self._put[key.topic, key.group, kind, _PUT_OK] += 1

    def read(self, key: ClaimKey, kind: str, queue_id: int) -> None:
        """Count such a record that was read from a queue of the revive topic."""
        self._read[key.topic, key.group, kind, str(queue_id)] += 1

    def retried(self, topic: str, group: str) -> None:
        """Count a message that was appended to a retry topic."""
        self._retried[topic, group, _PUT_OK] += 1

    def figures(self) -> Sequence[Figure]:
        """Return the figures; the first label of each is the topic."""
        counter, of_group = Kind.COUNTER, ("topic", "consumer_group")
        return (
            Figure(
                "pop_revive_records_put", counter, "", lambda: self._samples(self._put),
                "Check points and acks that were written for the revive topic.",
                (*of_group, "revive_message_type", "put_status"),
                metric="rocketmq_pop_revive_in_message_total",
            ),
            Figure(
                "pop_revive_records_read", counter, "", lambda: self._samples(self._read),
                "Check points and acks that were read from the revive topic.",
                (*of_group, "revive_message_type", "queue_id"),
                metric="rocketmq_pop_revive_out_message_total",
            ),
            Figure(
                "pop_retries", counter, "", lambda: self._samples(self._retried),
                "Popped messages without an ack in time that were appended to their retry topics.",
                (*of_group, "put_status"), metric="rocketmq_pop_revive_retry_messages_total",
            ),
        )  # fmt: skip

    def _samples(self, table: Mapping[tuple[str, ...], int]) -> Iterator[Sample]:
        for labels, count in list(table.items()):
            if self._topics.find(labels[0]) is not None:
                yield Sample(labels, count)

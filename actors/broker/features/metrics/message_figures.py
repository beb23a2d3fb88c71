"""Figures of the messages put, got and dead-lettered, by topic and group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metadata.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_HALF_TOPIC, Topics
from actors.broker.core.metric_labels import GROUP_LABELS, claim, of_group
from actors.broker.core.stats import SIZE_BOUNDS, BrokerStats, PutTally, Tally
from actors.host.figures import Figure, Histogram, Kind, Sample, Value

_PUT_LABELS = ("topic", "message_type", "is_system")
_SIZE_BOUNDS = tuple(float(bound) for bound in SIZE_BOUNDS)
_TRANSACTION = "transaction"
_TYPES = {TRANSACTION_HALF_TOPIC: _TRANSACTION, SCHEDULE_TOPIC: "delay", TIMER_TOPIC: "delay"}
"""Types of the messages that are stored in these topics until they are delivered; others are `normal`."""


class _Put(NamedTuple):
    """The messages of one type that were put into a topic."""

    message_type: str
    messages: int
    size_bytes: int
    sizes: Sequence[int]


def message_figures(stats: BrokerStats, tables: BrokerTables) -> Sequence[Figure]:
    """Return the figures of messages by topic and group of one broker."""
    topics = tables.topics

    def got(amount: Callable[[Tally], int]) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            for (topic, group), tally in list(stats.gets.items()):
                yield Sample(of_group(topics, topic, group), amount(tally))

        return samples

    def dead_letters() -> Iterator[Sample]:
        for (topic, group), count in list(stats.dead_letters.items()):
            name, of, _, is_system = of_group(topics, topic, group)
            yield Sample((name, of, is_system), count)

    counter, put = Kind.COUNTER, partial(_put_samples, stats, topics)
    return (
        Figure(
            "messages_in_by_topic", counter, "", partial(put, lambda each: each.messages),
            "Messages that were put.", _PUT_LABELS, metric="rocketmq_messages_in_total",
        ),
        Figure(
            "bytes_in_by_topic", counter, "bytes", partial(put, lambda each: each.size_bytes),
            "Bytes of the messages that were put.", _PUT_LABELS, metric="rocketmq_throughput_in_total",
        ),
        Figure(
            "message_size", Kind.HISTOGRAM, "bytes", partial(put, _histogram, with_unused=False),
            "Sizes of the records; the messages of a batch count with their average.", _PUT_LABELS,
            metric="rocketmq_message_size",
        ),
        Figure(
            "messages_out_by_group", counter, "", got(lambda tally: tally.messages),
            "Messages that consumers got.", GROUP_LABELS, metric="rocketmq_messages_out_total",
        ),
        Figure(
            "bytes_out_by_group", counter, "bytes", got(lambda tally: tally.size_bytes),
            "Bytes of the messages that consumers got.", GROUP_LABELS,
            metric="rocketmq_throughput_out_total",
        ),
        Figure(
            "dead_letters_by_group", counter, "", dead_letters,
            "Messages moved to the dead-letter topic of the group.",
            ("topic", "consumer_group", "is_system"), metric="rocketmq_send_to_dlq_messages_total",
        ),
    )  # fmt: skip


def _put_samples(
    stats: BrokerStats, topics: Topics, amount: Callable[[_Put], Value], *, with_unused: bool = True
) -> Iterator[Sample]:
    """Yield the samples of topics with messages; if `with_unused`, also those of the users' other topics."""
    for topic, tally in list(stats.puts.items()):
        is_system = claim(topics.is_system(topic))
        for each in _by_type(topic, tally):
            yield Sample((topic, each.message_type, is_system), amount(each))
    for topic in list(topics.table.topics) if with_unused else ():
        if topic not in stats.puts and not topics.is_system(topic):
            yield Sample((topic, "normal", "false"), 0)


def _by_type(topic: str, tally: PutTally) -> Iterator[_Put]:
    kind, ordered = _TYPES.get(topic, "normal"), tally.ordered
    if ordered is None or kind == _TRANSACTION:
        yield _Put(kind, tally.messages, tally.size_bytes, tally.sizes)
        return
    yield _Put("fifo", ordered.messages, ordered.size_bytes, ordered.sizes)
    if messages := tally.messages - ordered.messages:
        sizes = [total - part for total, part in zip(tally.sizes, ordered.sizes, strict=True)]
        yield _Put(kind, messages, tally.size_bytes - ordered.size_bytes, sizes)


def _histogram(put: _Put) -> Histogram:
    return Histogram(_SIZE_BOUNDS, tuple(put.sizes), put.size_bytes)

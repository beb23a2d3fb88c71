"""View of the live rates of brokers, topics and groups."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cluster.views.brokers import BrokerView, list_brokers
from store.message.validate import is_system_group

if TYPE_CHECKING:
    from cluster.client import Admin
    from store.clock import Clock

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TopicRate:
    """A topic: stored messages, and messages stored per second; None if it is unknown."""

    topic: str
    messages: int
    put_tps: float | None


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Progress of a group in one topic, and messages consumed per second."""

    group: str
    topic: str
    lag: int
    in_flight: int
    tps: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rates at one time.

    Attributes:
        at_ns: Time on the monotonic clock in nanoseconds.
        brokers: The masters.
        topics: Topics, the one with the highest rate first.
        groups: Groups, the one with the highest rate first.
        ends: Sum of the end offsets of each topic, for the rates of the next snapshot.
        consumed: Sum of the committed offsets of each group in each topic, for the same purpose.
    """

    at_ns: int
    brokers: Sequence[BrokerView]
    topics: Sequence[TopicRate]
    groups: Sequence[GroupRate]
    ends: Mapping[str, int]
    consumed: Mapping[tuple[str, str], int]


def look(admin: Admin, clock: Clock, before: Snapshot | None = None) -> Snapshot:
    """Return a snapshot of the cluster. Rates are since `before`, or without it those of the last minute.

    Raises `ClientError`.
    """
    at_ns = clock.monotonic_ns()
    span_s = (at_ns - before.at_ns) / 1e9 if before is not None else 0.0
    brokers = [each for each in list_brokers(admin, clock) if each.id == 0]
    topics, ends = _topics(admin, before.ends if before else {}, span_s)
    groups, consumed = _groups(admin, before.consumed if before else {}, span_s)
    return Snapshot(
        at_ns,
        brokers,
        sorted(topics, key=lambda row: (-(row.put_tps or 0), row.topic)),
        sorted(groups, key=lambda row: (-row.tps, -row.lag, row.group)),
        ends,
        consumed,
    )


def _topics(admin: Admin, before: Mapping[str, int], span_s: float) -> tuple[list[TopicRate], dict[str, int]]:
    rows, ends = [], {}
    system = set(admin.system_topics())
    for topic in (name for name in admin.topics() if name not in system):
        stats = admin.topic_stats(topic)
        ends[topic] = sum(offset.max_offset for offset in stats.offsets.values())
        stored = sum(offset.max_offset - offset.min_offset for offset in stats.offsets.values())
        rate = _rate(ends, before, topic, span_s)
        rows.append(TopicRate(topic, stored, stats.put_tps if rate is None else rate))
    return rows, ends


def _groups(
    admin: Admin, before: Mapping[tuple[str, str], int], span_s: float
) -> tuple[list[GroupRate], dict[tuple[str, str], int]]:
    rows, consumed = [], {}
    dead_letters = admin.dead_letter_counts()
    for group, stats in admin.all_group_stats().items():
        if is_system_group(group):
            continue
        for topic in sorted({queue.topic for queue in stats.offsets}):
            offsets = [offset for queue, offset in stats.offsets.items() if queue.topic == topic]
            consumed[group, topic] = sum(offset.consumer_offset for offset in offsets)
            rate = _rate(consumed, before, (group, topic), span_s)
            rows.append(
                GroupRate(
                    group,
                    topic,
                    sum(offset.lag for offset in offsets),
                    sum(offset.in_flight for offset in offsets),
                    stats.consume_tps if rate is None else rate,
                    dead_letters.get(group, 0),
                )
            )
    return rows, consumed


def _rate(now: Mapping[Key, int], before: Mapping[Key, int], key: Key, span_s: float) -> float | None:
    return max(now[key] - before[key], 0) / span_s if span_s > 0 and key in before else None

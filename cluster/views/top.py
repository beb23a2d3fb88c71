"""View of the live rates of topics and groups in a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.views.samples import ClusterState


@dataclass(frozen=True, slots=True)
class TopicRate:
    """A topic: stored messages, and messages stored per second; None if it is unknown.

    `stale_ms` is their age if they are older than `STALE_MS`, else None.
    """

    topic: str
    messages: int
    put_tps: float | None
    stale_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Progress of a group in one topic, and messages consumed per second."""

    group: str
    topic: str
    lag: int | None
    in_flight: int | None
    tps: float
    dead_letters: int


def topic_rates(sample: ClusterState, now_ms: int) -> list[TopicRate]:
    """Return the topics, the one with the highest rate first."""
    rows = [
        TopicRate(name, each.messages, each.tps, each.stale_ms(now_ms))
        for name, each in sample.topics.items()
    ]
    return sorted(rows, key=lambda row: (-(row.put_tps or 0), row.topic))


def group_rates(sample: ClusterState, dead_letters: Mapping[str, int]) -> list[GroupRate]:
    """Return the groups in each of their topics, the one with the highest rate first.

    Before the second sample the rate is that of the group in the last minute. `dead_letters`: pending ones by
    group.
    """
    rows = [
        GroupRate(
            name,
            topic,
            each.lag,
            each.in_flight,
            group.minute_tps if each.tps is None else each.tps,
            dead_letters.get(name, 0),
        )
        for name, group in (sample.groups or {}).items()
        for topic, each in group.topics.items()
    ]
    return sorted(rows, key=lambda row: (-row.tps, -(row.lag or 0), row.group))

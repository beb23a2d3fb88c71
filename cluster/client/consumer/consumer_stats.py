"""Counters and rates of a consumer by topic: messages pulled and consumed (RocketMQ ConsumerStatsManager).

The queues keep the counters. ConsumerStats takes a snapshot of them every ten seconds. A rate is the
difference between the current counters and the snapshot at the start of the window, which is one minute, or
one hour for failures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import add, attrgetter, sub
from typing import Any, NamedTuple

SNAPSHOT_INTERVAL_S = 10
_SNAPSHOTS_PER_MINUTE = 6
_SNAPSHOTS_PER_HOUR = 360


@dataclass(slots=True)
class ConsumeCounts:
    """Counters of one queue or topic since the consumer started.

    `timed` counts the listener calls whose duration was measured; only a sample of the calls is measured.
    """

    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    succeeded: int = 0
    failed: int = 0
    timed: int = 0
    timed_ms: int = 0

    def add_pull(self, count: int, took_ms: int) -> None:
        """Count a pull that returned `count` messages."""
        self.pulls += 1
        self.pull_ms += took_ms
        self.pulled += count

    def add_timed_call(self, took_ms: int) -> None:
        """Count a listener call whose duration was measured."""
        self.timed += 1
        self.timed_ms += took_ms

    def plus(self, other: ConsumeCounts) -> ConsumeCounts:
        """Return the sum of these counters and `other`."""
        return self._with(other, add)

    def minus(self, other: ConsumeCounts) -> ConsumeCounts:
        """Return the increase of these counters since the earlier counters `other`."""
        return self._with(other, sub)

    def _with(self, other: ConsumeCounts, act: Callable[[int, int], int]) -> ConsumeCounts:
        return ConsumeCounts(*map(act, _numbers(self), _numbers(other)))


_numbers: Callable[[ConsumeCounts], tuple[int, ...]] = attrgetter(
    *(each.name for each in fields(ConsumeCounts))
)


class _Snapshot(NamedTuple):
    at_ms: int
    counts: Mapping[str, ConsumeCounts]


class ConsumerStats:
    """Snapshots of the counters of one consumer, and the rates computed from them."""

    def __init__(self, counts: Callable[[], dict[str, ConsumeCounts]], now_ms: Callable[[], int]) -> None:
        """`counts` returns the current counters by topic, `now_ms` the monotonic time in milliseconds."""
        self._counts = counts
        self._now_ms = now_ms
        first = _Snapshot(now_ms(), {})
        self._snapshots: deque[_Snapshot] = deque([first], maxlen=_SNAPSHOTS_PER_HOUR + 1)

    def take_snapshot(self) -> None:
        """Store the current counters. Call this every `SNAPSHOT_INTERVAL_S` seconds."""
        self._snapshots.append(_Snapshot(self._now_ms(), self._counts()))

    def status(self, topic: str) -> dict[str, Any]:
        """Return RocketMQ's ConsumeStatus of `topic` as JSON fields.

        Rates (`…TPS`) and average durations (`…RT`, in ms) cover the last minute. `consumeFailedMsgs` covers
        the last hour.
        """
        now_ms, counts = self._now_ms(), self._counts().get(topic, ConsumeCounts())
        begin = self._snapshots[max(len(self._snapshots) - 1 - _SNAPSHOTS_PER_MINUTE, 0)]
        grown = counts.minus(begin.counts.get(topic, ConsumeCounts()))
        seconds = max(now_ms - begin.at_ms, 1000) / 1000
        failed_hour = counts.failed - self._snapshots[0].counts.get(topic, ConsumeCounts()).failed
        return {
            "consumeFailedMsgs": failed_hour,
            "consumeFailedTPS": grown.failed / seconds,
            "consumeOKTPS": grown.succeeded / seconds,
            "consumeRT": grown.timed_ms / grown.timed if grown.timed else 0.0,
            "pullRT": grown.pull_ms / grown.pulls if grown.pulls else 0.0,
            "pullTPS": grown.pulled / seconds,
        }

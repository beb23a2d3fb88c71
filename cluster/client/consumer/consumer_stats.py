"""What a consumer has pulled and consumed, by topic, and at which rates (RocketMQ ConsumerStatsManager).

The counters are kept where the work is done; here they are noted every ten seconds, and a rate is the
difference between now and the note at the window's begin: a minute, and an hour for failures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import add, attrgetter, sub
from typing import Any, NamedTuple

NOTE_S = 10
_MINUTE_NOTES = 6
_HOUR_NOTES = 360


@dataclass(slots=True)
class ConsumeCounts:
    """Of one queue or topic, since the consumer's start. Only some calls of the listener are timed."""

    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    succeeded: int = 0
    failed: int = 0
    timed: int = 0
    timed_ms: int = 0

    def pulled_chunk(self, count: int, took_ms: int) -> None:
        """A pull has brought so many messages."""
        self.pulls += 1
        self.pull_ms += took_ms
        self.pulled += count

    def timed_call(self, took_ms: int) -> None:
        """A call of the listener has been timed."""
        self.timed += 1
        self.timed_ms += took_ms

    def plus(self, other: ConsumeCounts) -> ConsumeCounts:
        """Both together."""
        return self._with(other, add)

    def minus(self, other: ConsumeCounts) -> ConsumeCounts:
        """What has come since `other`."""
        return self._with(other, sub)

    def _with(self, other: ConsumeCounts, act: Callable[[int, int], int]) -> ConsumeCounts:
        return ConsumeCounts(*map(act, _numbers(self), _numbers(other)))


_numbers: Callable[[ConsumeCounts], tuple[int, ...]] = attrgetter(
    *(each.name for each in fields(ConsumeCounts))
)


class _Note(NamedTuple):
    at_ms: int
    counts: Mapping[str, ConsumeCounts]


class ConsumerStats:
    """The notes of one consumer."""

    def __init__(self, counts: Callable[[], dict[str, ConsumeCounts]], now_ms: Callable[[], int]) -> None:
        """`counts` gives the counters by topic, `now_ms` monotonic milliseconds."""
        self._counts = counts
        self._now_ms = now_ms
        first = _Note(now_ms(), {})
        self._notes: deque[_Note] = deque([first], maxlen=_HOUR_NOTES + 1)

    def note(self) -> None:
        """Keep the counters as they are; call every `NOTE_S`."""
        self._notes.append(_Note(self._now_ms(), self._counts()))

    def status(self, topic: str) -> dict[str, Any]:
        """RocketMQ's ConsumeStatus: rates over the last minute, milliseconds, failures of the last hour."""
        now_ms, counts = self._now_ms(), self._counts().get(topic, ConsumeCounts())
        begin = self._notes[max(len(self._notes) - 1 - _MINUTE_NOTES, 0)]
        grown = counts.minus(begin.counts.get(topic, ConsumeCounts()))
        seconds = max(now_ms - begin.at_ms, 1000) / 1000
        failed_hour = counts.failed - self._notes[0].counts.get(topic, ConsumeCounts()).failed
        return {
            "consumeFailedMsgs": failed_hour,
            "consumeFailedTPS": grown.failed / seconds,
            "consumeOKTPS": grown.succeeded / seconds,
            "consumeRT": grown.timed_ms / grown.timed if grown.timed else 0.0,
            "pullRT": grown.pull_ms / grown.pulls if grown.pulls else 0.0,
            "pullTPS": grown.pulled / seconds,
        }

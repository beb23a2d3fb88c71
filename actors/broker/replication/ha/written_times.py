"""WrittenTimes: when the log reached which length, to tell the lag of a slave in seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

SAMPLES_MAX = 4_096


class WrittenTimes:
    """Samples of the end of one CommitLog; the oldest are dropped."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._times_ns: deque[int] = deque(maxlen=SAMPLES_MAX)

    def add(self, written: int, now_ns: int) -> None:
        """Record that the log ends at `written` now; does nothing if it has not grown."""
        if not self._ends or written > self._ends[-1]:
            self._ends.append(written)
            self._times_ns.append(now_ns)

    def age_s(self, offset: int, now_ns: int) -> int:
        """Return for how many seconds the log has been longer than `offset`; 0 if it is not.

        The result is too small by the time between two samples, and if the sample was dropped.
        """
        place = bisect_right(self._ends, offset)
        return (now_ns - self._times_ns[place]) // 1_000_000_000 if place < len(self._ends) else 0

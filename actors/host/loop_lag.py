"""LoopLag: how late an event loop runs what is due.

A timer that is due every 10 ms notes how late it runs. That costs next to nothing, and what holds the loop
– a slow callback, a collection of garbage, another process on the same core – shows in it, to the millisecond
that the loop's timers go by.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from store.clock import NS_PER_MS, Clock

SAMPLE_MS: Final = 10
BOUNDS_US: Final = tuple(round(100 * 1.25**step) for step in range(60))
"""The upper bounds of the buckets: 0.1 ms, and each a quarter more, up to 52 s."""
_SAMPLES_A_WINDOW: Final = 60_000 // SAMPLE_MS


class LoopLag:
    """Measures the loop that `start` runs on. Counts since the start, and of the last one to two minutes."""

    def __init__(self, clock: Clock, on_sample: Callable[[int], None] | None = None) -> None:
        """`on_sample` is told each lag, in nanoseconds."""
        self.longest_ns = 0
        self.last_ns = 0
        self.buckets = [0] * (len(BOUNDS_US) + 1)
        self._window = [0] * len(self.buckets)
        self._window_before = [0] * len(self.buckets)
        self._window_samples = 0
        self._clock = clock
        self._on_sample = on_sample
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure, on the running loop."""
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, lag_ns: int) -> None:
        """Count one sample."""
        bucket = bisect_left(BOUNDS_US, lag_ns // 1000)
        self.buckets[bucket] += 1
        self._window[bucket] += 1
        self.longest_ns = max(self.longest_ns, lag_ns)
        self._window_samples += 1
        if self._window_samples == _SAMPLES_A_WINDOW:
            self._window_before, self._window = self._window, [0] * len(self.buckets)
            self._window_samples = 0

    def recent_us(self, share: float) -> int:
        """The lag below which `share` of the samples of the last one to two minutes lie."""
        return percentile_us([a + b for a, b in zip(self._window, self._window_before, strict=True)], share)

    def figures(self) -> dict[str, object]:
        """What a broker tells about it; `loop_lag_buckets` are counts since the start, by `BOUNDS_US`."""
        return {
            "loop_lag_p50_us": self.recent_us(0.5),
            "loop_lag_p99_us": self.recent_us(0.99),
            "longest_lag_us": self.longest_ns // 1000,
            "loop_lag_buckets": self.buckets.copy(),
        }

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_ns = self._clock.monotonic_ns() + SAMPLE_MS * NS_PER_MS
        self._timer = loop.call_later(SAMPLE_MS / 1000, self._sample, loop)

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        lag_ns = max(self._clock.monotonic_ns() - self._due_ns, 0)
        self.last_ns = lag_ns
        self.note(lag_ns)
        if self._on_sample is not None:
            self._on_sample(lag_ns)
        self._arm(loop)


def percentile_us(buckets: Sequence[int], share: float) -> int:
    """The upper bound of the bucket in which `share` of all samples is reached; 0 where there are none."""
    wanted = share * sum(buckets)
    if not wanted:
        return 0
    reached = 0
    for bound_us, count in zip(BOUNDS_US, buckets, strict=False):
        reached += count
        if reached >= wanted:
            return bound_us
    return BOUNDS_US[-1]


def longest_us(buckets: Sequence[int]) -> int:
    """The upper bound of the last bucket that holds a sample; 0 where there are none."""
    last = max((bucket for bucket, count in enumerate(buckets) if count), default=-1)
    return BOUNDS_US[min(last, len(BOUNDS_US) - 1)] if last >= 0 else 0

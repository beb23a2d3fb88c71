"""LoopLag: measures how late an event loop runs its timers.

A timer that is due every 10 ms records how late it runs. It costs little, and every cause of a blocked loop
is visible in it: a slow callback, a garbage collection, another process on the same core. The resolution is
one millisecond, that of the loop's timers.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from actors.host.figures import Figure, Histogram, Kind
from store.common.clock import NS_PER_MS, Clock

SAMPLE_MS: Final = 10
BOUNDS_US: Final = tuple(round(100 * 1.25**step) for step in range(60))
"""The upper bounds of the histogram's buckets: 0.1 ms, each 25 % above the previous one, up to 52 s."""
_SAMPLES_PER_WINDOW: Final = 60_000 // SAMPLE_MS


class LoopLag:
    """Measures the lag of one event loop: since the start, and during the last one to two minutes."""

    def __init__(self, clock: Clock, on_sample: Callable[[int], None] | None = None) -> None:
        """Create the object; `on_sample` is called with each measured lag, in nanoseconds."""
        self.longest_ns = 0
        self.last_ns = 0
        self.total_ns = 0
        """Sum of all samples."""
        self.buckets = [0] * (len(BOUNDS_US) + 1)
        self._window = [0] * len(self.buckets)
        self._window_before = [0] * len(self.buckets)
        self._window_samples = 0
        self._clock = clock
        self._on_sample = on_sample
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to measure the running loop."""
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, lag_ns: int) -> None:
        """Count one sample of the lag, in nanoseconds."""
        bucket = bisect_left(BOUNDS_US, lag_ns // 1000)
        self.buckets[bucket] += 1
        self._window[bucket] += 1
        self.total_ns += lag_ns
        self.longest_ns = max(self.longest_ns, lag_ns)
        self._window_samples += 1
        if self._window_samples == _SAMPLES_PER_WINDOW:
            self._window_before, self._window = self._window, [0] * len(self.buckets)
            self._window_samples = 0

    def recent_us(self, share: float) -> int:
        """Return percentile `share` (0 to 1) of the lag during the last one to two minutes."""
        return percentile_us([a + b for a, b in zip(self._window, self._window_before, strict=True)], share)

    def figures(self) -> Sequence[Figure]:
        """Return the figures of the lag; the buckets (`BOUNDS_US`) have counts since the start."""

        def all_samples() -> Histogram:
            return Histogram(BOUNDS_US, self.buckets, self.total_ns / 1000)

        gauge, recent_us = Kind.GAUGE, self.recent_us
        return (
            Figure(
                "loop_lag_p50_us", gauge, "us", lambda: recent_us(0.5), "Median lag of the last minutes.",
                runtime_names=("loopLagP50Micros",),
            ),
            Figure(
                "loop_lag_p99_us", gauge, "us", lambda: recent_us(0.99), "99 % of lags of the last minutes.",
                runtime_names=("loopLagP99Micros",),
            metric="raymq_loop_lag_p99_seconds",
        ),
            Figure(
                "longest_lag_us", gauge, "us", lambda: self.longest_ns // 1000, "Longest lag.",
                runtime_names=("loopLagMaxMicros",),
            ),
            Figure(
                "loop_lag_buckets", Kind.HISTOGRAM, "us", all_samples, "Lags of the event loop.",
                runtime_names=("loopLagBuckets",),
            metric="raymq_loop_lag_seconds",
        ),
        )  # fmt: skip

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
    """Return the upper bound of the bucket that contains percentile `share` (0 to 1); 0 without samples."""
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
    """Return the upper bound of the last bucket that is not empty; 0 without samples."""
    last = max((bucket for bucket, count in enumerate(buckets) if count), default=-1)
    return BOUNDS_US[min(last, len(BOUNDS_US) - 1)] if last >= 0 else 0

"""LoopLag: measures how late an event loop runs its timers.

A timer that is due every 10 ms records how late it runs. It costs little, and every cause of a blocked loop
is visible in it: a slow callback, a garbage collection, another process on the same core. The resolution is
one millisecond, that of the loop's timers. While the loop is idle, the timer is due at each beat only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from actors.beat import BEAT_MS, on_beat_s
from actors.host.figures import Figure, Histogram, Kind
from store.common.clock import NS_PER_MS, Clock

SAMPLE_MS: Final = 10
BOUNDS_US: Final = tuple(round(100 * 1.25**step) for step in range(60))
"""The upper bounds of the histogram's buckets: 0.1 ms, each 25 % above the previous one, up to 52 s."""
_WINDOW_NS: Final = 60_000 * NS_PER_MS


class LoopLag:
    """Measures the lag of one event loop: since the start, and during the last one to two minutes."""

    def __init__(
        self,
        clock: Clock,
        on_sample: Callable[[int], None] | None = None,
        turns: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create the object.

        Args:
            clock: measures the lag.
            on_sample: called with each measured lag, in nanoseconds.
            turns: returns the number of turns of the loop; an idle loop has at most one in each beat.
        """
        self.longest_ns = 0
        self.last_ns = 0
        self.total_ns = 0
        """Sum of all samples."""
        self.buckets = [0] * (len(BOUNDS_US) + 1)
        self._window = [0] * len(self.buckets)
        self._window_before = [0] * len(self.buckets)
        self._window_ends_ns = clock.monotonic_ns() + _WINDOW_NS
        self._clock = clock
        self._on_sample = on_sample
        self._turns = turns
        self._turns_before = 0
        self._interval_ms = SAMPLE_MS
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
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._window_ends_ns:
            self._window_before, self._window = self._window, [0] * len(self.buckets)
            self._window_ends_ns = now_ns + _WINDOW_NS
        bucket = bisect_left(BOUNDS_US, lag_ns // 1000)
        self.buckets[bucket] += 1
        self._window[bucket] += 1
        self.total_ns += lag_ns
        self.longest_ns = max(self.longest_ns, lag_ns)

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
        delay_s = on_beat_s(self._interval_ms / 1000, loop.time())
        self._due_ns = self._clock.monotonic_ns() + round(delay_s * 1e9)
        self._timer = loop.call_later(delay_s, self._sample, loop)

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        lag_ns = max(self._clock.monotonic_ns() - self._due_ns, 0)
        self.last_ns = lag_ns
        self.note(lag_ns)
        if self._on_sample is not None:
            self._on_sample(lag_ns)
        turns = self._turns()
        is_idle = turns - self._turns_before <= self._interval_ms // BEAT_MS
        self._turns_before, self._interval_ms = turns, BEAT_MS if is_idle else SAMPLE_MS
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

"""LoopLag measures a blocked event loop and computes percentiles of its samples."""

from __future__ import annotations

import uvloop

from actors.host.loop_lag import BOUNDS_US, LoopLag, longest_us, percentile_us
from store.common.clock import SystemClock
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


def test_percentiles_are_upper_bounds_of_buckets(clock: ClockAtRest) -> None:
    lag = LoopLag(clock)
    for _ in range(98):
        lag.note(400_000)
    lag.note(9_000_000)
    lag.note(70_000_000)
    assert 400 <= lag.recent_us(0.5) <= 500
    assert 9_000 <= lag.recent_us(0.99) <= 11_250
    assert 70_000 <= longest_us(lag.buckets) <= 87_500
    assert lag.longest_ns == 70_000_000
    assert sum(lag.buckets) == 100


def test_lag_without_samples_is_zero(clock: ClockAtRest) -> None:
    lag = LoopLag(clock)
    assert (lag.recent_us(0.99), longest_us(lag.buckets), percentile_us([], 0.5)) == (0, 0, 0)


def test_lag_above_all_bounds_is_counted_in_the_last_bucket(clock: ClockAtRest) -> None:
    lag = LoopLag(clock)
    lag.note(10**12)
    assert longest_us(lag.buckets) == BOUNDS_US[-1] == percentile_us(lag.buckets, 0.5)


def test_recent_percentiles_ignore_samples_older_than_two_minutes(clock: ClockAtRest) -> None:
    lag = LoopLag(clock)
    lag.note(50_000_000)
    for _ in range(12_000):
        clock.advance(10)
        lag.note(0)
    assert lag.recent_us(1) == BOUNDS_US[0]
    assert lag.longest_ns == 50_000_000


def test_lag_of_a_blocked_loop_is_measured(clock: ClockAtRest) -> None:
    """The loop does not really block: the clock is advanced as if it had."""
    lags_ns: list[int] = []

    async def story() -> None:
        lag = LoopLag(clock, lags_ns.append)
        lag.start()
        clock.advance(300)
        await eventually_async(lambda: lags_ns)
        lag.stop()
        assert (lags_ns[0], lag.longest_ns) == (290_000_000, 290_000_000)  # more samples may have come since

    uvloop.run(story())


def test_idle_loop_is_sampled(clock: ClockAtRest) -> None:
    async def story() -> None:
        lag = LoopLag(SystemClock())
        lag.start()
        await eventually_async(lambda: sum(lag.buckets) >= 3)
        lag.stop()

    uvloop.run(story())

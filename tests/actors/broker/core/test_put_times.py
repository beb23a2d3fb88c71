"""The histograms of put times, as reported to RocketMQ's tools."""

from __future__ import annotations

import pytest

from actors.broker.core.put_times import PutTimes
from actors.broker.core.stats import BrokerStats
from tests.conftest import ClockAtRest

NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]",
    "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip


def ranges_of(times: PutTimes) -> dict[str, int]:
    return {
        name: int(count) for name, _, count in (part.partition(":") for part in times.distribution().split())
    }


def roll_a_minute(times: PutTimes, clock: ClockAtRest) -> None:
    clock.advance(60_000)
    times.roll()


def test_distribution_covers_the_last_whole_minute(clock: ClockAtRest) -> None:
    times = PutTimes(clock)
    took_ms = (0, 1, 9, 10, 49, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
    for each_ms in took_ms:
        times.count(each_ms)
    assert (times.distribution(), times.percentile_ms(0.99)) == ("null", 0.0)
    roll_a_minute(times, clock)
    assert ranges_of(times) == dict(zip(NAMES, (1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), strict=True))
    roll_a_minute(times, clock)
    assert sum(ranges_of(times).values()) == 0
    assert times.longest_ms == 10_000


def test_percentile_is_interpolated_within_its_bucket(clock: ClockAtRest) -> None:
    times = PutTimes(clock)
    times.count(1, puts=900)
    times.count(30, puts=90)
    times.count(700, puts=10)
    roll_a_minute(times, clock)
    assert times.percentile_ms(0.5) == pytest.approx(500 / 900)
    assert times.percentile_ms(0.99) == 30
    assert times.percentile_ms(0.999) == pytest.approx(600 + 100 * 0.9)
    times.count(60_000)
    roll_a_minute(times, clock)
    assert times.percentile_ms(0.99) == 0.0
    assert PutTimes(clock).percentile_ms(0.99) == 0.0


def test_a_turn_is_timed_from_its_first_put_to_its_confirmation(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    times = stats.put_times
    stats.put("T", messages=1, size_bytes=100)
    clock.advance(3)
    stats.put("T", messages=1, size_bytes=100)
    times.end_turn(written=200)
    clock.advance(4)
    stats.put("T", messages=1, size_bytes=100)
    times.end_turn(written=300)
    times.count_confirmed(confirmed=199)
    clock.advance(10)
    times.count_confirmed(confirmed=200)
    assert (times.longest_ms, len(times.turns)) == (17, 1)
    clock.advance(100)
    times.count_confirmed(confirmed=300)
    assert (times.longest_ms, len(times.turns)) == (110, 0)
    roll_a_minute(times, clock)
    assert (ranges_of(times)["[10~50ms]"], ranges_of(times)["[100~200ms]"]) == (2, 1)

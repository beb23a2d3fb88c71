"""The broker's counters: rates over windows, and totals at midnight."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from actors.broker.core import stats as stats_module
from actors.broker.core.stats import DAY, HOUR, MINUTE, BrokerStats, Count
from tests.conftest import ClockAtRest


def pass_time(stats: BrokerStats, clock: ClockAtRest, seconds: int, step_s: int = 1) -> None:
    """Advance the clock and take samples like the broker's timer."""
    for _ in range(0, seconds, step_s):
        clock.advance(step_s * 1000)
        stats.sample_totals()
        for _ in stats.sample_due(2):
            pass


def test_rate_counts_the_messages_of_the_window(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    for _ in range(300):
        stats.put("T", messages=10, size_bytes=1000)
        pass_time(stats, clock, 1)
    assert stats.put_tps("T") == pytest.approx(10, rel=0.02)
    pass_time(stats, clock, 71)
    assert stats.put_tps("T") == 0
    hour = stats.since(stats.puts["T"], HOUR)
    assert hour.grown == Count(messages=3000, size_bytes=300_000, calls=300)


def test_rate_of_a_new_counter_is_measured_from_its_creation(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    pass_time(stats, clock, 95)
    stats.got("G", "T", messages=50, size_bytes=1)
    pass_time(stats, clock, 5)
    assert stats.got_tps("G", "T") == pytest.approx(10)
    assert stats.got_tps("another", "T") == 0


def test_burst_leaves_the_windows_of_minute_hour_and_day_in_turn(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    pass_time(stats, clock, 1)
    stats.put("T", messages=100, size_bytes=1)
    tally = stats.puts["T"]
    within = []
    for seconds in (100, 5_000, 100_000):
        pass_time(stats, clock, seconds, step_s=10)
        within.append([stats.since(tally, window).grown.messages for window in (MINUTE, HOUR, DAY)])
    assert within == [[0, 100, 100], [0, 0, 100], [0, 0, 0]]


def test_total_rates_cover_10_60_and_600_seconds(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    for second in range(700):
        stats.put("T", messages=1 if second < 640 else 7, size_bytes=1)
        stats.got("G", "T", messages=second % 2, size_bytes=0)
        pass_time(stats, clock, 1)
    assert [stats.rates(span_s).put for span_s in (10, 60)] == pytest.approx([7, 7])
    assert stats.rates(600).put == pytest.approx((540 * 1 + 60 * 7) / 600)
    assert stats.rates(600).found == pytest.approx(0.5)
    assert stats.rates(600).missed == pytest.approx(0.5)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    os.environ.setdefault("TZ", "")
    if not os.environ["TZ"]:
        del os.environ["TZ"]
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_totals_at_midnight_are_kept(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    for messages in (5, 7, 11):
        stats.put("T", messages, size_bytes=1)
        pass_time(stats, clock, 86_400, step_s=600)
    assert (stats.put_days.yesterday_morning, stats.put_days.today_morning) == (12, 23)


def test_deleted_topic_keeps_its_messages_in_the_totals(clock: ClockAtRest) -> None:
    stats = BrokerStats(clock)
    stats.put("T", 1, 10)
    stats.got("G", "T", 1, 10)
    stats.sent_back("G", "T", 10)
    stats.forget_topic("T")
    assert not stats.puts
    assert not stats.gets
    assert not stats.send_backs
    assert stats.put_total.count == Count(1, 10, 1)


def test_oldest_counter_is_dropped_over_the_limit(
    clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "COUNTERS", replace(stats_module.COUNTERS, limit=2))
    stats = BrokerStats(clock)
    for group in ("A", "B", "A", "C"):
        stats.got(group, "T", 1, 10)
        stats.sent_back(group, "T", 10)
        stats.dead_letter(group, "T")
    assert [use.read() for use in stats.bounds()] == [2]
    for table in (stats.gets, stats.send_backs, stats.dead_letters):
        assert list(table) == [("T", "B"), ("T", "C")]
    assert stats.got_total.count == Count(4, 40, 4)

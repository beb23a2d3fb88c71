"""Request latencies without the stolen CPU time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.internals.waits import Waits


def stolen(*seconds: float) -> Iterator[float]:
    yield from seconds


def test_stolen_time_during_request_is_subtracted() -> None:
    counter = stolen(5.0, 5.04, 5.04)
    waits = Waits(0.0, lambda: next(counter))
    assert waits.add(0.0, 0.052)
    assert round(waits.longest_own_ms) == 12
    assert waits.add(0.052, 0.082)  # nothing was stolen
    assert round(waits.longest_own_ms) == 30
    assert [round(each) for each in waits.taken_ms] == [52, 30]


def test_time_stolen_before_request_is_not_subtracted() -> None:
    """Short requests read the counter of stolen time at most every 10 ms."""
    counter = stolen(0.0, 0.0, 0.3, 0.3)
    waits = Waits(0.0, lambda: next(counter))
    assert waits.add(0.0, 0.001)
    assert not waits.add(0.001, 0.002)
    assert waits.add(0.011, 0.0115)  # 10 ms have passed: reads the counter, 0.3 s were stolen
    assert waits.add(0.0115, 0.0715)
    assert round(waits.longest_own_ms) == 60


def test_request_with_only_stolen_time_counts_as_zero() -> None:
    counter = stolen(0.0, 0.2)
    waits = Waits(0.0, lambda: next(counter))
    waits.add(0.0, 0.1)
    assert waits.longest_own_ms == 0

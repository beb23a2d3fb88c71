"""The longest wait of a bench, less what the host took meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.bench.waits import Waits


def stolen(*seconds: float) -> Iterator[float]:
    yield from seconds


def test_what_the_host_took_during_a_wait_is_not_its_own() -> None:
    told = stolen(5.0, 5.04, 5.04)
    waits = Waits(0.0, lambda: next(told))
    assert waits.add(0.0, 0.052)
    assert round(waits.longest_own_ms) == 12
    assert waits.add(0.052, 0.082)  # nothing was stolen
    assert round(waits.longest_own_ms) == 30
    assert [round(each) for each in waits.taken_ms] == [52, 30]


def test_what_was_stolen_before_is_no_excuse_and_short_waits_cost_no_look() -> None:
    told = stolen(0.0, 0.0, 0.3, 0.3)
    waits = Waits(0.0, lambda: next(told))
    assert waits.add(0.0, 0.001)
    assert not waits.add(0.001, 0.002)
    assert waits.add(0.011, 0.0115)  # it is time to look: 0.3 s were stolen meanwhile
    assert waits.add(0.0115, 0.0715)
    assert round(waits.longest_own_ms) == 60


def test_a_wait_that_was_all_stolen_is_no_wait_of_the_bench() -> None:
    told = stolen(0.0, 0.2)
    waits = Waits(0.0, lambda: next(told))
    waits.add(0.0, 0.1)
    assert waits.longest_own_ms == 0

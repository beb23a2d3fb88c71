"""Seeded schedules of Raft groups on real stores: see docs/simulation.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.run import Level, run_seeds
from tests.sim.store_level import stores_in_memory


@pytest.fixture(scope="module")
def stores() -> Iterator[Level]:
    with stores_in_memory() as level:
        yield level


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.extended) for n in range(50, 300, 50))]
)
def test_schedules_on_stores_break_no_promise(stores: Level, first: int) -> None:
    print(run_seeds(range(first, first + 50), stores))  # noqa: T201 - a report


@pytest.mark.extended
@pytest.mark.timeout(7_200)
def test_many_schedules_on_stores_break_no_promise(stores: Level) -> None:
    print(run_seeds(range(10_000, 13_000), stores))  # noqa: T201 - a report


def test_queue_of_a_damaged_topic_is_removed_if_its_record_is_deleted(stores: Level) -> None:
    """A bit of the topic of the only record of a queue flips, and the leader deletes it before its repair."""
    stores.run(stores.draw(12_003_055).only([2, 3, 4]), None)


def test_schedule_on_stores_replays_exactly(stores: Level) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        stores.run(stores.draw(7), trace)
    assert len(traces[0]) > 100
    assert traces[0] == traces[1]

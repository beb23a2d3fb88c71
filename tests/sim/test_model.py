"""Seeded schedules of Raft groups on model logs: see docs/simulation.md."""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS, Mutation, find
from tests.sim.run import SeedFailed, run_model, run_seeds
from tests.sim.schedule import draw

CHEAP_BUDGET = 300
NAMES = [each.name for each in MUTATIONS]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2_000, 500))
def test_schedules_break_no_promise(first: int) -> None:
    print(run_seeds(range(first, first + 500)))  # noqa: T201 - a report


@pytest.mark.extended
@pytest.mark.timeout(7_200)
def test_many_schedules_break_no_promise() -> None:
    print(run_seeds(range(10_000, 40_000)))  # noqa: T201 - a report


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.budget <= CHEAP_BUDGET], ids=lambda each: each.name
)
def test_simulation_finds_common_mistakes(mutation: Mutation) -> None:
    assert find(mutation) is not None


@pytest.mark.extended
@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.budget > CHEAP_BUDGET], ids=lambda each: each.name
)
def test_simulation_finds_rare_mistakes(mutation: Mutation) -> None:
    assert find(mutation) is not None


def test_mutations_leave_the_core_as_it_was() -> None:
    with MUTATIONS[0].applied():
        pass
    run_model(draw(4))  # the seed that finds this mutation


def test_schedule_replays_exactly() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_model(draw(33), trace)
    assert len(traces[0]) > 200
    assert traces[0] == traces[1]


def test_failing_seed_reports_its_shrunk_schedule() -> None:
    mutation = MUTATIONS[NAMES.index("a fetch does not compare the terms")]
    found = find(mutation)
    assert found is not None
    with mutation.applied(), pytest.raises(SeedFailed) as failure:
        run_seeds([found[0]])
    text = str(failure.value)
    assert f"seed {found[0]} fails" in text
    assert "shrunk to" in text
    faults = next(line for line in text.splitlines() if line.startswith("repeat:")).split("--faults ")[1]
    kept = [] if faults.startswith("none") else [int(each) for each in faults.split()[0].split(",")]
    assert len(kept) < len(draw(found[0]).faults)
    with mutation.applied(), pytest.raises(Exception, match=r".+"):
        run_model(draw(found[0]).only(kept))
    run_model(draw(found[0]).only(kept))  # the mistake, not the schedule, was the cause

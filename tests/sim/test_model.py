"""Seeded schedules of Raft groups on model logs: see docs/simulation.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.raft.leading import Leading
from tests.sim.run import SeedFailed, run_model, run_seeds
from tests.sim.schedule import Fault, draw
from tests.sim.simulation import Simulation


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [0, 250, *(pytest.param(n, marks=pytest.mark.extended) for n in (500, 750))]
)
def test_schedules_break_no_promise(first: int) -> None:
    print(run_seeds(range(first, first + 250)))  # noqa: T201 - a report


@pytest.mark.extended
@pytest.mark.timeout(7_200)
def test_many_schedules_break_no_promise() -> None:
    print(run_seeds(range(10_000, 40_000)))  # noqa: T201 - a report


def test_schedule_replays_exactly() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_model(draw(33), trace)
    assert len(traces[0]) > 200
    assert traces[0] == traces[1]


def test_failing_seed_reports_its_shrunk_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as mistake:
        mistake.setattr(Leading, "has_same_bytes", lambda leading, fetch: True)
        with pytest.raises(SeedFailed) as failure:
            run_seeds(range(30))
        text = str(failure.value)
        seed = int(text.split()[1])
        assert "shrunk to" in text
        faults = next(line for line in text.splitlines() if line.startswith("repeat:")).split("--faults ")[1]
        kept = [] if faults.startswith("none") else [int(each) for each in faults.split()[0].split(",")]
        assert len(kept) < len(draw(seed).faults)
        with pytest.raises(Exception, match=r".+"):
            run_model(draw(seed).only(kept))
    run_model(draw(seed).only(kept))  # the mistake, not the schedule, was the cause


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("isolate", ("in",)), ("isolate", ("out",)), ("isolate", ("both",)), ("pause", ()), ("crash", ())],
)
@pytest.mark.parametrize("voters", [3, 5])
def test_member_that_returns_does_not_depose_the_leader(
    kind: str, arguments: tuple[str, ...], voters: int
) -> None:
    """Each follower is away for ten election times, again and again; a majority hears the leader."""
    quiet = replace(
        draw(1), voters=voters, loss=0, duplication=0, lateness=0, faults=(), latencies_ms=(1, 2, 5)
    )
    simulation = Simulation(quiet)
    simulation.run()
    leader = next(each.number for each in simulation.replicas if each.is_leader)
    away_ms = 10 * quiet.timing.election_ms
    followers = [each for each in range(voters) if each != leader]
    faults = [
        Fault(quiet.duration_ms + place * 3 * away_ms, kind, (number, *arguments, away_ms))
        for place, number in enumerate(followers * 2)
    ]
    end_ms = faults[-1].time_ms + 3 * away_ms
    returning = replace(quiet, faults=tuple(faults), duration_ms=end_ms)
    simulation = Simulation(returning)
    simulation.run()
    assert simulation.checks.terms == 1
    assert [each.number for each in simulation.replicas if each.is_leader] == [leader]


def test_member_that_was_down_elects_one_that_it_does_not_know() -> None:
    """Voters 0, 1 and 2: one is down, another one is replaced by 3, and the third one stops for good."""
    quiet = replace(draw(0), loss=0, duplication=0, lateness=0, faults=(), latencies_ms=(1, 2, 5))
    simulation = Simulation(quiet)
    simulation.run()
    leader = next(each.number for each in simulation.replicas if each.is_leader)
    down, replaced = [each for each in range(3) if each != leader]
    time_ms, election_ms = quiet.duration_ms, quiet.timing.election_ms
    for_good = 1_000 * election_ms
    faults = (
        Fault(time_ms, "crash", (down, 30 * election_ms)),
        Fault(time_ms + election_ms, "replace", (replaced, 3)),
        Fault(time_ms + 29 * election_ms, "crash", (replaced, for_good)),
        Fault(time_ms + 29 * election_ms, "crash", (leader, for_good)),
    )
    sends = (*quiet.sends_ms, time_ms + 59 * election_ms)
    simulation = Simulation(
        replace(quiet, faults=faults, duration_ms=time_ms + 60 * election_ms, sends_ms=sends)
    )
    simulation.run()
    assert [each.number for each in simulation.replicas if each.is_leader] == [3]


def test_member_that_was_never_in_touch_follows_one_added_since() -> None:
    """Seed 12,030,313: its log is empty, so it knows the group only by its first members."""
    quiet = replace(draw(0), loss=0, duplication=0, lateness=0, latencies_ms=(1, 2, 5))
    election_ms = quiet.timing.election_ms
    faults = (
        Fault(0, "isolate", (0, "both", 60 * election_ms)),
        Fault(10 * election_ms, "add", (3,)),
        *(Fault(time * election_ms, "transfer", (3,)) for time in range(30, 60, 10)),
    )
    simulation = Simulation(replace(quiet, faults=faults, duration_ms=59 * election_ms))
    simulation.run()
    assert [each.number for each in simulation.replicas if each.is_leader] == [3]

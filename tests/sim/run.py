"""Run seeds, and shrink and print a schedule that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.sim.schedule import Schedule, draw
from tests.sim.simulation import Simulation


class Level(NamedTuple):
    """What a schedule runs on: model logs or real stores."""

    option: str
    """The option of `python -m tests.sim` that selects the level."""
    draw: Callable[[int], Schedule]
    run: Callable[[Schedule, list[str] | None], Simulation]
    """Runs a schedule to its end, and collects its steps in the list; raises the failure."""


def run_model(schedule: Schedule, trace: list[str] | None = None) -> Simulation:
    """Run a schedule on model logs. Raises Violation, or what the core raised."""
    simulation = Simulation(schedule, trace=trace)
    simulation.run()
    return simulation


MODEL = Level("", draw, run_model)


class SeedFailed(AssertionError):
    """A seed failed; the text has its shrunk schedule and how to repeat it."""


def run_seeds(
    seeds: Iterable[int], level: Level = MODEL, on_failure: Callable[[SeedFailed], None] | None = None
) -> str:
    """Run seeds; return a summary.

    `on_failure` is called for each seed that fails. Without it, the first one raises SeedFailed with its
    shrunk schedule.
    """
    began, count, failed, events, acked, terms = time.process_time(), 0, 0, 0, 0, 0
    for seed in seeds:
        count += 1
        try:
            simulation = _run_seed(level.draw(seed), level)
        except SeedFailed as failure:
            if on_failure is None:
                raise
            on_failure(failure)
            failed += 1
            continue
        events += simulation.events
        acked += len(simulation.checks.acked)
        terms += simulation.checks.terms
    each = max(count, 1)
    ms = 1_000 * (time.process_time() - began) / each
    return (
        f"{count:,} schedules, {failed} violations: {ms:.1f} ms, {events / each:.0f} events, "
        f"{acked / each:.1f} acknowledged sends and {terms / each:.1f} terms per schedule"
    )


def _run_seed(schedule: Schedule, level: Level) -> Simulation:
    try:
        return level.run(schedule, None)
    except Exception as error:
        raise SeedFailed(report(schedule, level, error)) from error


def shrink(schedule: Schedule, level: Level) -> tuple[list[int], Exception | None]:
    """Leave out faults, one after another, while the schedule still fails.

    Returns the places of the faults that are needed, and the failure that they cause.
    """
    kept, cause = list(range(len(schedule.faults))), None
    for place in list(kept):
        trial = [each for each in kept if each != place]
        try:
            level.run(schedule.only(trial), None)
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            kept, cause = trial, error
    return kept, cause


def report(schedule: Schedule, level: Level, error: Exception) -> str:
    """Return the text that describes a failure and how to repeat it."""
    kept, cause = shrink(schedule, level)
    network = (
        f"latencies {schedule.latencies_ms} ms, loss {schedule.loss}, duplication {schedule.duplication}, "
        f"lateness {schedule.lateness}"
    )
    faults = ",".join(map(str, kept)) or "none"
    command = f"python -m tests.sim {level.option}--first {schedule.seed} --faults {faults} --trace"
    lines = [
        f"seed {schedule.seed} fails: {error!r}",
        f"shrunk to {len(kept)} of {len(schedule.faults)} faults: {(cause or error)!r}",
        f"{schedule.voters} voters, {schedule.timing}, {network}",
        *(f"{place:>4} {schedule.faults[place]}" for place in kept),
        f"repeat: uv run {command}",
    ]
    return "\n".join(lines)

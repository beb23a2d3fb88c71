"""Run seeds, and shrink and print a schedule that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tests.sim.schedule import Schedule, draw
from tests.sim.simulation import Simulation

Run = Callable[[Schedule], Simulation]
"""Runs a schedule to its end; raises the failure."""


def run_model(schedule: Schedule, trace: list[str] | None = None) -> Simulation:
    """Run a schedule on model logs. Raises Violation, or what the core raised."""
    simulation = Simulation(schedule, trace=trace)
    simulation.run()
    return simulation


class SeedFailed(AssertionError):
    """A seed failed; the text has its shrunk schedule and how to repeat it."""


def run_seeds(seeds: Iterable[int], run: Run = run_model, *, level: str = "") -> str:
    """Run seeds; return a summary. Raises SeedFailed with the shrunk schedule of the first one that fails."""
    began, count, events, acked, terms = time.process_time(), 0, 0, 0, 0
    for seed in seeds:
        simulation = _run_seed(seed, run, level)
        count += 1
        events += simulation.events
        acked += len(simulation.checks.acked)
        terms += simulation.checks.terms
    ms = 1_000 * (time.process_time() - began) / max(count, 1)
    each = max(count, 1)
    return (
        f"{count:,} schedules, 0 violations: {ms:.1f} ms, {events / each:.0f} events, "
        f"{acked / each:.1f} acknowledged sends and {terms / each:.1f} terms per schedule"
    )


def _run_seed(seed: int, run: Run, level: str) -> Simulation:
    schedule = draw(seed)
    try:
        return run(schedule)
    except Exception as error:
        raise SeedFailed(report(schedule, run, error, level)) from error


def shrink(schedule: Schedule, run: Run) -> tuple[list[int], Exception | None]:
    """Leave out faults, one after another, while the schedule still fails.

    Returns the places of the faults that are needed, and the failure that they cause.
    """
    kept, cause = list(range(len(schedule.faults))), None
    for place in list(kept):
        trial = [each for each in kept if each != place]
        try:
            run(schedule.only(trial))
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            kept, cause = trial, error
    return kept, cause


def report(schedule: Schedule, run: Run, error: Exception, level: str) -> str:
    """Return the text that describes a failure and how to repeat it."""
    kept, cause = shrink(schedule, run)
    network = (
        f"latencies {schedule.latencies_ms} ms, loss {schedule.loss}, duplication {schedule.duplication}"
    )
    faults = ",".join(map(str, kept)) or "none"
    command = f"python -m tests.sim {level}--first {schedule.seed} --faults {faults} --trace"
    lines = [
        f"seed {schedule.seed} fails: {error!r}",
        f"shrunk to {len(kept)} of {len(schedule.faults)} faults: {(cause or error)!r}",
        f"{schedule.voters} voters, {schedule.timing}, {network}",
        *(f"{place:>4} {schedule.faults[place]}" for place in kept),
        f"repeat: uv run {command}",
    ]
    return "\n".join(lines)

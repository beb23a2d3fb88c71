"""`python -m tests.sim --seeds N --first SEED`: run seeded schedules; see docs/simulation.md."""

from __future__ import annotations

import argparse
import sys

from tests.sim.run import SeedFailed, run_model, run_seeds
from tests.sim.schedule import Schedule, draw
from tests.sim.simulation import Simulation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=1_000, help="number of schedules")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--faults", help="run only these faults of the first seed: 3,7 or none")
    parser.add_argument("--trace", action="store_true", help="print every step of the first seed")
    arguments = parser.parse_args()
    if arguments.faults is not None or arguments.trace:
        return _repeat(arguments.first, arguments.faults, is_traced=arguments.trace)
    try:
        print(run_seeds(range(arguments.first, arguments.first + arguments.seeds)))  # noqa: T201
    except SeedFailed as failure:
        print(failure)  # noqa: T201
        return 1
    return 0


def _repeat(seed: int, faults: str | None, *, is_traced: bool) -> int:
    schedule: Schedule = draw(seed)
    if faults is not None:
        schedule = schedule.only([] if faults == "none" else [int(each) for each in faults.split(",")])
    trace: list[str] = []
    error: Exception | None = None
    try:
        simulation: Simulation = run_model(schedule, trace if is_traced else None)
        trace.append(f"{simulation.events} events, no violation")
    except Exception as failure:  # noqa: BLE001 - any failure is a finding
        error = failure
    print(*trace, *([repr(error)] if error else []), sep="\n")  # noqa: T201
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main())

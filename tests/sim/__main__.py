"""`python -m tests.sim --seeds N --first SEED [--store]`: run seeded schedules; see docs/simulation.md."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import nullcontext, suppress

from tests.sim.run import MODEL, Level, SeedFailed, run_seeds
from tests.sim.store_level import stores_in_memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=1_000, help="number of schedules")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--store", action="store_true", help="run on real stores, not on model logs")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also after one failed")
    parser.add_argument("--faults", help="run only these faults of the first seed: 3,7 or none")
    parser.add_argument("--trace", action="store_true", help="print every step of the first seed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with stores_in_memory() if arguments.store else nullcontext(MODEL) as level:
        if arguments.faults is not None or arguments.trace:
            return _repeat(level, arguments.first, arguments.faults, is_traced=arguments.trace)
        failures: list[SeedFailed] = []

        def on_failure(failure: SeedFailed) -> None:
            failures.append(failure)
            print(failure, flush=True)  # noqa: T201
            if not arguments.keep_going:
                raise failure

        seeds = range(arguments.first, arguments.first + arguments.seeds)
        with suppress(SeedFailed):
            print(run_seeds(seeds, level, on_failure))  # noqa: T201
        return 1 if failures else 0


def _repeat(level: Level, seed: int, faults: str | None, *, is_traced: bool) -> int:
    schedule = level.draw(seed)
    if faults is not None:
        schedule = schedule.only([] if faults == "none" else [int(each) for each in faults.split(",")])
    trace: list[str] = []
    error: Exception | None = None
    try:
        simulation = level.run(schedule, trace if is_traced else None)
        trace.append(f"{simulation.events} events, no violation")
    except Exception as failure:  # noqa: BLE001 - any failure is a finding
        error = failure
    print(*trace, *([repr(error)] if error else []), sep="\n")  # noqa: T201
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main())

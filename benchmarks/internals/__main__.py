"""Measure parts of a broker, or the limits of the machine, on this machine.

    uv run python -m benchmarks.internals NAME [--seconds 20] [--runs 3] [--directory DIR] [--json]

Each benchmark starts its broker in a separate process on free ports, and deletes its files at the end.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import cast

from rich.console import Console

from benchmarks.internals.options import InternalsOptions
from cluster.client import ClientError
from cluster.interrupts import interrupt_once
from cluster.lab.bench.bench_report import results_table
from cluster.lab.bench.options import Bench, BenchFailed
from cluster.lab.bench.registry import with_stolen_share
from cluster.lab.bench.result import BenchResult, as_json

INTERNALS = {
    "machine": "Limits of the machine: memory, disk, sockets, interpreter.",
    "sql-filter": "Read a queue with the SQL92 filter `a > 10 AND region IN ('x','y')`.",
    "recovery": "Recover a 2 GiB log: scan, or scan and rebuild queues and index; verify it with CRCs.",
    "many-queues": "Send to 20,000 queues and to 8; restart time, memory and disk use.",
    "backlog": "Send, pull and restart with 50 M stored messages, compared with an empty broker.",
    "interference": "Send latency during cold reads, file rolls, connection churn and other load.",
    "connections": "Send rate with 5,000 connections and 50,000 held pulls; memory per held pull.",
    "lake-scan": "Read a topic from its table and the log, compared with the log alone (Spark).",
    "hostile": "Longest stall of the broker's event loop for each of many costly requests.",
}
"""Description of each benchmark by name; the module has the same name, with underscores."""


def run_internal(name: str, options: InternalsOptions) -> list[BenchResult]:
    """Run the benchmark `name` and return its results. Raises `BenchFailed`."""
    module = import_module(f"{__package__}.{name.replace('-', '_')}")
    return with_stolen_share(cast("Bench", module.run), options)


def main() -> int:
    """Run the benchmark of the command line and print its results. Return 1 if it failed."""
    defaults = InternalsOptions()
    parser = argparse.ArgumentParser(
        prog="benchmarks.internals",
        description=(__doc__ or "").splitlines()[0],
        epilog="\n".join(f"{name:<14} {line}" for name, line in INTERNALS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=INTERNALS, metavar="NAME", help="name of a benchmark, see below")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="duration of each run")
    for option in (
        "runs",
        "messages",
        "body_bytes",
        "log_bytes",
        "queues",
        "backlog",
        "cold_bytes",
        "connections",
    ):
        flag = f"--{option.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(defaults, option), help="%(default)s by default")
    parser.add_argument("--directory", type=Path, help="parent directory of the stores")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    given = vars(parser.parse_args())
    name, is_json = given.pop("name"), given.pop("json")
    interrupt_once()  # SIGTERM (`timeout`) must also stop the broker, which runs in another session
    try:
        with Console(stderr=True).status("starting") as status:
            results = run_internal(name, InternalsOptions(**given, progress=status.update))
    except (BenchFailed, ClientError) as error:
        print(f"benchmarks.internals: {error}", file=sys.stderr)
        return 1
    if is_json:
        print(as_json(name, results))
    else:
        Console().print(results_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

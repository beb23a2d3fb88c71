"""Table of all benchmarks, and the functions that run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import cast

from cluster.lab.bench.options import Bench, BenchOptions
from cluster.lab.bench.result import BenchResult
from cluster.lab.bench.stolen import StolenShare

BENCHES = {
    "send-table": "send_table to 8 queues by key hash, with the index; `all` runs both flush modes.",
    "send-one": "Messages sent one at a time with the blocking producer.",
    "send-async": "64 concurrent sends with the asyncio producer.",
    "send-batch": "send_batch with 256 messages per call, and send_many with 50,000 bodies per call.",
    "pull-arrow": "Read a backlog over the socket as Arrow batches, all columns.",
    "push": "A push consumer whose listener reads every field, up to 32 messages per call.",
    "timers": "Lateness of timer messages, 1,000 per second, from the requested time to the listener.",
    "spark-read": "Spark local[2] over mapped files: sum of the bodies, and all columns to the noop sink.",
}
"""Description of each benchmark by name; the module has the same name, with underscores."""

ALL = "all"
UNDER_BOTH_FLUSH_MODES = ("send-table",)
WITH_TLS = ("send-table", "send-one", "send-async", "send-batch", "pull-arrow", "push", "timers")
"""Benchmarks whose clients can connect by TLS (`BenchOptions.tls`)."""


def run_bench(name: str, options: BenchOptions) -> list[BenchResult]:
    """Import the benchmark `name`, run it and return its results. Raises `BenchFailed`."""
    module = import_module(f"{__package__}.{name.replace('-', '_')}")
    return with_stolen_share(cast("Bench", module.run), options)


def with_stolen_share(bench: Bench, options: BenchOptions) -> list[BenchResult]:
    """Run `bench` and return its results.

    The parameter `stolen` of each result is the share of CPU time (0 to 1) that the hypervisor gave to other
    virtual machines; the measured rates are too low by at least that share.
    """
    share = StolenShare()
    results = bench(options)
    added: dict[str, object] = {"stolen": round(share.so_far(), 3)}
    if options.tls is not None:
        added["tls"] = True
    return [replace(each, parameters={**each.parameters, **added}) for each in results]


def run_named(name: str, options: BenchOptions) -> Iterator[tuple[str, list[BenchResult]]]:
    """Run one benchmark, or all if `name` is `all`; yield each name with its results."""
    if name != ALL:
        yield name, run_bench(name, options)
        return
    for each in BENCHES:
        yield each, run_bench(each, options)
        if each in UNDER_BOTH_FLUSH_MODES:
            other = "sync" if options.flush == "async" else "async"
            yield each, run_bench(each, replace(options, flush=other))

"""Measure `jobs.reindex_store`: bytes of CommitLog per second, written and checked.

    uv run python -m benchmarks.reindex [--log-bytes N] [--runs 3] [--cores 2] [--directory DIR] [--json]

A broker writes the log, with an index entry for each message, and is stopped. A run re-indexes the store on a
running Spark session, with the log in the page cache, until the files are in place and flushed. The goals of
the written rate are 250 MB/s (floor) and half the machine's rate of memory copies (aim).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.internals import machine
from benchmarks.internals.options import InternalsOptions, log_pool
from benchmarks.processes import stop_broker
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import filled_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLOOR_BYTES_PER_S = 250_000_000


def main() -> int:
    """Run the benchmark and print its results. Return 1 if it failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.reindex", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log-bytes", type=int, default=2 * 1024**3, help="size of the log")
    parser.add_argument("--runs", type=int, default=3, help="number of runs; the medians are printed")
    parser.add_argument("--cores", type=int, default=2, help="threads of the local Spark session")
    parser.add_argument("--directory", type=Path, help="parent directory of the store")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    options = InternalsOptions(
        runs=given.runs,
        log_bytes=given.log_bytes,
        directory=given.directory,
        progress=lambda line: print(line, file=sys.stderr),
    )
    try:
        results = measure(options, given.cores)
    except BenchFailed as error:
        print(f"benchmarks.reindex: {error}", file=sys.stderr)
        return 1
    copy = next(each for each in machine.run(options) if each.name == "memory-copy")
    rates = {each.name: each.median("bytes_per_s") or 0.0 for each in (*results, copy)}
    if given.json:
        print(json.dumps({"rates": rates, "parameters": dict(results[0].parameters)}))
        return 0
    for name, rate in rates.items():
        print(f"{name:<14} {rate / 1e6:>8,.0f} MB/s")
    print(f"re-index: {verdict(rates['reindex'], rates['memory-copy'])}")
    return 0


def verdict(rate: float, memory_copy: float) -> str:
    """Return which goal a rate reaches: `aim`, `floor` or `missed`. Both rates are in bytes per second."""
    if rate >= memory_copy / 2:
        return "aim"
    return "floor" if rate >= FLOOR_BYTES_PER_S else "missed"


def measure(options: InternalsOptions, cores: int) -> list[BenchResult]:
    """Write a log of about `options.log_bytes`, then re-index and check it `options.runs` times each.

    Raises BenchFailed if records are missing, or if the check finds a difference.
    """
    from jobs import local_session

    pool, rounds = log_pool(options.log_bytes, options.body_bytes)
    with filled_cluster(options, "reindex: writing", pool, rounds) as (cluster, messages):
        stop_broker(cluster)
        spark = local_session("raymq-bench", cores)
        try:
            _run(spark, cluster.store, messages, check=True)  # starts the workers, warms the page cache
            written = [
                _run(spark, cluster.store, messages, check=False) for _ in options.numbered_runs("reindex")
            ]
            checked = [
                _run(spark, cluster.store, messages, check=True) for _ in options.numbered_runs("check")
            ]
        finally:
            spark.stop()
    parameters = {"log_bytes": written[0].bytes, "body_bytes": options.body_bytes, "cores": cores}
    return [BenchResult("reindex", written, parameters), BenchResult("reindex-check", checked, parameters)]


def _run(spark: SparkSession, store: Path, messages: int, *, check: bool) -> Run:
    from jobs import reindex_store

    started = time.perf_counter()
    done = reindex_store(spark, store, check=check)
    seconds = time.perf_counter() - started
    if done.records < messages or done.differences or done.damage:
        raise BenchFailed(
            f"{done.records:,} of {messages:,} records, {len(done.differences):,} differences and"
            f" {len(done.damage):,} damaged ranges were found"
        )
    return Run(seconds, done.records, done.log_end - done.log_begin)


if __name__ == "__main__":
    sys.exit(main())

"""verify: verify a log with its consume queues and index, including CRCs, with a warm page cache."""

from __future__ import annotations

import time
from pathlib import Path

from cluster.bench.options import BenchFailed, BenchOptions
from cluster.bench.result import BenchResult, Run
from cluster.bench.sending import filled_cluster, log_pool
from store.tools.verify import verify


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with a log of about `options.log_bytes` bytes."""
    pool, rounds = log_pool(options)
    with filled_cluster(options, "verify: writing", pool, rounds) as (cluster, messages):
        cluster.stop()
        verified(cluster.store, messages)  # warms the cache
        runs = [verified(cluster.store, messages) for _ in options.numbered_runs("verify")]
    parameters = {"log_bytes": runs[0].bytes, "body_bytes": options.body_bytes, "cache": "warm", "crc": True}
    return [BenchResult("verify", runs, parameters)]


def verified(store: Path, messages: int) -> Run:
    """Verify the store and measure it.

    Raises BenchFailed if the store is damaged or has fewer than `messages` records.
    """
    started = time.perf_counter()
    report = verify(store)
    seconds = time.perf_counter() - started
    records = report.counts["records"]
    if not report.is_valid or records < messages:
        raise BenchFailed(
            f"verify reported {len(report.findings)} findings and {records:,} of {messages:,} records"
        )
    return Run(seconds, records, report.counts["logBytes"])

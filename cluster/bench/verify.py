"""verify: a log by send-table with its queues and index, all of it compared with CRC, warm cache."""

from __future__ import annotations

import time
from pathlib import Path

from cluster.bench.broker import bench_cluster
from cluster.bench.messages import MessagePool
from cluster.bench.options import BenchFailed, BenchOptions
from cluster.bench.recovery import POOL_ROWS, RECORD_OVERHEAD_BYTES, TOPIC
from cluster.bench.result import BenchResult, Run
from cluster.bench.sending import fill
from store.tools.verify import verify


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure over a log of about `options.log_bytes`."""
    record_bytes = options.body_bytes + RECORD_OVERHEAD_BYTES
    pool = MessagePool(min(POOL_ROWS, options.log_bytes // record_bytes), options.body_bytes)
    rounds = -(-options.log_bytes // (pool.rows * record_bytes))
    with bench_cluster(options, "async") as cluster:
        options.progress(f"verify: writing {rounds * pool.rows:,} messages")
        messages = fill(cluster.nameservers, TOPIC, pool, rounds)
        cluster.stop()
        runs = []
        verified(cluster.store, messages)  # warms the cache
        for number in range(options.runs):
            options.progress(f"verify: run {number + 1} of {options.runs}")
            runs.append(verified(cluster.store, messages))
    parameters = {"log_bytes": runs[0].bytes, "body_bytes": options.body_bytes, "cache": "warm", "crc": True}
    return [BenchResult("verify", runs, parameters)]


def verified(store: Path, messages: int) -> Run:
    """Verify the store, in which nothing may be damaged."""
    started = time.perf_counter()
    report = verify(store)
    seconds = time.perf_counter() - started
    records = report.counts["records"]
    if not report.is_sound or records < messages:
        raise BenchFailed(f"{len(report.findings)} findings, {records:,} of {messages:,} records")
    return Run(seconds, records, report.counts["logBytes"])

"""send-table: send_table to eight queues by key hash, with the index.

The time includes the acknowledgement and the dispatch of all messages.
"""

from __future__ import annotations

import time

from cluster.client import Producer
from cluster.lab.bench.broker import bench_cluster
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchOptions
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, await_arrival, make_topic, send_rounds

TABLE_ROWS = 500_000


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with the flush mode of the options, with a new broker and store for each run."""
    pool = MessagePool(min(TABLE_ROWS, options.messages), options.body_bytes)
    runs = [measure(options, pool) for _ in options.numbered_runs(f"send-table, {options.flush} flush")]
    parameters = {
        "flush": options.flush,
        "body_bytes": options.body_bytes,
        "queues": QUEUES,
        "table_rows": pool.rows,
        "index": True,
    }
    return [BenchResult("send-table", runs, parameters)]


def measure(options: BenchOptions, pool: MessagePool) -> Run:
    """Measure one run on a new broker."""
    with bench_cluster(options) as cluster, Producer(cluster.nameservers) as producer:
        make_topic(cluster.nameservers, "warm")
        make_topic(cluster.nameservers, "bench")
        warmed = send_rounds(producer, "warm", pool, 0, options.warm_up_s)
        started = time.perf_counter()
        rounds = send_rounds(producer, "bench", pool, warmed, options.seconds)
        messages = rounds * pool.rows
        await_arrival(cluster.nameservers, "bench", messages, pool.last_key())
        seconds = time.perf_counter() - started
        return Run(seconds, messages, messages * pool.body_bytes)

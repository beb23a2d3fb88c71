"""pull-arrow: read a backlog over the socket as Arrow batches, all columns.

Each pass is verified by message count and checksum.
"""

from __future__ import annotations

import time

import numpy as np

from cluster.client import PullConsumer
from cluster.lab.bench.messages import bodies_of, checksum
from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, backlog_pool, filled_cluster

POLL_ROWS = 65_536
WORD = 2**64


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with one backlog of about `options.messages` messages."""
    pool, rounds = backlog_pool(options)
    with filled_cluster(options, "pull-arrow: sending", pool, rounds) as (cluster, messages):
        expected = pool.checksum() * rounds % WORD
        with PullConsumer(cluster.nameservers, group="bench") as consumer:
            consumer.assign(consumer.queues("bench"))
            _measure(consumer, messages, expected, options.warm_up_s)
            runs = [
                _measure(consumer, messages, expected, options.seconds)
                for _ in options.numbered_runs("pull-arrow")
            ]
    parameters = {
        "backlog": messages,
        "body_bytes": options.body_bytes,
        "queues": QUEUES,
        "columns": "all",
        "mapped": False,
    }
    return [BenchResult("pull-arrow", runs, parameters)]


def _measure(consumer: PullConsumer, messages: int, expected: int, seconds: float) -> Run:
    """Pull the backlog repeatedly for `seconds`, at least once."""
    passes = total_bytes = 0
    started = time.perf_counter()
    while not passes or time.perf_counter() - started < seconds:
        consumer.seek_to_beginning()
        total_bytes += pull_once(consumer, messages, expected)
        passes += 1
    return Run(time.perf_counter() - started, passes * messages, total_bytes)


def pull_once(consumer: PullConsumer, messages: int, expected: int) -> int:
    """Pull the whole backlog and return the size of its bodies.

    Raises BenchFailed if the count `messages` or the checksum `expected` does not match, or if no message
    arrives for 10 s.
    """
    count = total = body_bytes = 0
    while count < messages:
        batch = consumer.poll_arrow(max_rows=POLL_ROWS, timeout_ms=10_000)
        if not batch.num_rows:
            raise BenchFailed(f"received {count:,} of {messages:,} messages, then no message for 10 s")
        bodies = bodies_of(batch.column("body"))
        total = (total + checksum(np.ascontiguousarray(bodies))) % WORD
        body_bytes += len(bodies)
        count += batch.num_rows
    if (count, total) != (messages, expected):
        raise BenchFailed(
            f"received {count:,} messages with checksum {total:x}, "
            f"sent {messages:,} with checksum {expected:x}"
        )
    return body_bytes

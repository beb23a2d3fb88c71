"""spark-read: read a topic with Spark local[2] from mapped files.

One part sums the body lengths, the other writes all columns to the noop sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, backlog_pool, filled_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORES = 2


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with one backlog of about `options.messages` messages."""
    from jobs import local_session, read_queue

    pool, rounds = backlog_pool(options)
    with filled_cluster(options, "spark-read: sending", pool, rounds) as (cluster, messages):
        options.progress("spark-read: starting Spark")
        spark = local_session("raymq-bench", CORES)
        try:
            everything = read_queue(spark, "bench", nameservers=cluster.nameservers)
            bodies = read_queue(spark, "bench", nameservers=cluster.nameservers, columns=["body"])
            _verify(everything, messages, pool.crc_sum() * rounds)

            def sum_bodies() -> None:
                total = bodies.selectExpr("sum(length(body))").first()
                if total is None or total[0] != messages * pool.body_bytes:
                    raise BenchFailed(
                        f"Spark summed {total} body bytes, expected {messages * pool.body_bytes}"
                    )

            def write_all() -> None:
                everything.write.format("noop").mode("overwrite").save()

            parameters = {
                "backlog": messages,
                "body_bytes": options.body_bytes,
                "queues": QUEUES,
                "cores": CORES,
            }
            return [
                BenchResult(
                    name,
                    _repeat(options, name, messages, pool.body_bytes, job),
                    {**parameters, "columns": columns},
                )
                for name, columns, job in (
                    ("spark-read-bodies", "body", sum_bodies),
                    ("spark-read-all", "all", write_all),
                )
            ]
        finally:
            spark.stop()


def _repeat(
    options: BenchOptions, name: str, messages: int, body_bytes: int, job: Callable[[], None]
) -> list[Run]:
    _measure(messages, body_bytes, job, options.warm_up_s)
    return [_measure(messages, body_bytes, job, options.seconds) for _ in options.numbered_runs(name)]


def _measure(messages: int, body_bytes: int, job: Callable[[], None], seconds: float) -> Run:
    """Run `job` repeatedly for `seconds`, at least once."""
    passes = 0
    started = time.perf_counter()
    while not passes or time.perf_counter() - started < seconds:
        job()
        passes += 1
    return Run(time.perf_counter() - started, passes * messages, passes * messages * body_bytes)


def _verify(frame: DataFrame, messages: int, crc_sum: int) -> None:
    """Raise BenchFailed unless Spark reads all messages, with their bodies and keys."""
    found = frame.selectExpr("count(uniqKey)", "sum(crc32(body))", "count(properties['KEYS'])").first()
    if found is None or tuple(found) != (messages, crc_sum, messages):
        raise BenchFailed(
            f"Spark read (count, CRC sum, keys) {found}, expected {(messages, crc_sum, messages)}"
        )

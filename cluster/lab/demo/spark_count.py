"""Counts the flights with Spark. Its executors run on the Ray cluster and map the files of the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cluster.lab.demo.demo_report import SparkCount
from cluster.lab.demo.flights import Delays
from cluster.lab.demo.traffic import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.1
OnTasks = Callable[[int, int], None]


def count_by_spark(spark: SparkSession, nameservers: Sequence[str], on_tasks: OnTasks) -> SparkCount:
    """Count the flights by carrier. Messages with the same UNIQ_KEY are counted as one flight.

    `on_tasks` is called periodically with the numbers of completed and of all tasks of the running stages.
    """
    from pyspark.sql import functions as f

    from jobs import read_queue

    started = time.perf_counter()
    delay = f.get_json_object(f.col("body").cast("string"), "$.arr_delay").cast("double")
    flights = (
        read_queue(spark, TOPIC, nameservers=nameservers, columns=["body", "tags", "uniqKey"])
        .select("uniqKey", "tags", delay.alias("delay"))
        .groupBy("uniqKey")
        .agg(f.first("tags").alias("carrier"), f.first("delay").alias("delay"), f.count("*").alias("stored"))
    )
    by_carrier = flights.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.count("delay").alias("arrived"),
        f.sum("delay").alias("delays"),
        f.sum("stored").alias("stored"),
    )
    with _watching(spark, on_tasks):
        rows = by_carrier.collect()
    return SparkCount(
        {row["carrier"]: Delays(row["flights"], row["arrived"], row["delays"] or 0.0) for row in rows},
        sum(row["stored"] for row in rows),
        time.perf_counter() - started,
    )


@contextmanager
def _watching(spark: SparkSession, on_tasks: OnTasks) -> Iterator[None]:
    """Call `on_tasks` periodically in the context, with the tasks of the running Spark stages."""
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not over.wait(POLL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            running = [stage for stage in stages if stage is not None]
            if running:
                on_tasks(
                    sum(each.numCompletedTasks for each in running), sum(each.numTasks for each in running)
                )

    watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()

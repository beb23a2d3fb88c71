"""A driver of a standalone Spark cluster, in jobs one of whose executors is killed or overtaken by another.

python -m tests.jobs.spark.cluster_driver JOB MASTER NAMESERVERS TOPIC DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from cluster.client import Admin
from jobs import local_session, write_queue
from tests.eventually import LIMIT_S, eventually
from tests.jobs.spark.parquet_sink import Sink
from tests.jobs.spark.spark_cluster import EXECUTOR_MEMORY

ROWS = 4_000
BATCH_ID = "streaming.sql.batchId"


def task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def kill_executor(directory: str) -> None:
    """Kill the executor of this Python worker, unless the test has killed one before."""
    marker = Path(directory, "killed")
    if marker.exists():
        return
    marker.touch()
    executor = psutil.Process().parent().parent()  # worker ← daemon ← executor
    assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
    executor.kill()


def kill_in_second_batch(directory: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        if task().getLocalProperty(BATCH_ID) == "1":
            kill_executor(directory)


def kill_after_storing(
    nameservers: str, topic: str, directory: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Kill the executor when some rows of the task are stored."""
    for number, batch in enumerate(batches):
        yield batch
        if number == 3:
            with Admin(nameservers) as admin:
                eventually(lambda: sum(admin.end_offsets(topic).values()) > 0, "stored rows")
            kill_executor(directory)


def be_overtaken(
    nameservers: str, topic: str, directory: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Hold the first attempt until the speculative one has stored rows too; then both continue."""
    with Admin(nameservers) as admin:
        before = sum(admin.end_offsets(topic).values())
        for number, batch in enumerate(batches):
            yield batch
            if number == 3:
                eventually(lambda: sum(admin.end_offsets(topic).values()) > before, "stored rows")
                Path(directory, f"attempt-{task().attemptNumber()}").touch()
                eventually(Path(directory, "attempt-1").exists, "a speculative attempt")


def rows_of_one_task(spark: SparkSession) -> DataFrame:
    """Return ROWS rows in one of two partitions; the other one is empty.

    Some batches of rows are larger than the buffers between Spark's workers.
    """
    return spark.range(0, 2 * ROWS, 1, 2).where(f"id >= {ROWS}").selectExpr("rpad(id, 1000, ' ') AS body")


def main(job: str, master: str, nameservers: str, topic: str, directory: str) -> None:
    """Run one job. It must succeed."""
    spark = local_session(
        settings={
            "spark.master": master,
            "spark.driver.memory": "512m",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{LIMIT_S:.0f}s",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
            "spark.speculation": str(job == "speculative-write").lower(),
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
        }
    )
    if job == "stream":
        sink = Sink(spark, nameservers, topic, Path(directory))
        trigger, through = {"availableNow": True}, partial(kill_in_second_batch, directory)
        query = sink.start(trigger, through, startingOffsets="earliest", maxOffsetsPerTrigger=20)
        query.awaitTermination()
    else:
        disturb = be_overtaken if job == "speculative-write" else kill_after_storing
        rows = rows_of_one_task(spark).mapInArrow(
            partial(disturb, nameservers, topic, directory), "body string"
        )
        receipt = write_queue(rows, topic, nameservers=nameservers, buffer_bytes=1)
        assert receipt.rows == ROWS, receipt
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

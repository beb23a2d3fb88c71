"""`write_queue`: write the rows of a Spark DataFrame to a topic.

    driver      new job, manifest topic
    each task   rows ─→ PartitionWriter ─→ topic            a receipt with the offsets of its rows
    driver      receipts of the successful attempts ─→ manifest ─→ RAYMQ_WRITE_MANIFESTS

Spark passes on the result of one successful attempt of each task. The receipts are these results, so the
manifest contains no attempt that failed or that another one overtook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from cluster.client.config import ClientConfig, Nameservers
from jobs.commit import WriteReceipt, commit, prepare_topic
from jobs.job_errors import OptionInvalid, WriteFailed
from jobs.manifest import PartitionReceipt
from jobs.partition_writer import PartitionWriter
from jobs.reader import freeze_loaded_objects
from jobs.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.clock import SystemClock

RECEIPT = "receipt"
DESCRIPTION = "spark.job.description"
_TYPES = re.compile(r"(string|binary|tinyint|smallint|int|bigint|(var)?char\(\d+\))\Z")
_ERROR_OF_TASK = re.compile(r"jobs\.job_errors\.WriteFailed: (.+)")


def write_queue(
    df: DataFrame,
    topic: str,
    *,
    nameservers: Nameservers | None = None,
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    sharding_key: str | None = None,
    mode: Literal["append", "errorifexists"] = "append",
    buffer_bytes: int = BUFFER_BYTES,
) -> WriteReceipt:
    """Write each row of `df` as a message to `topic`, and commit all of them when the last one is stored.

    A task that Spark retries, or runs twice at a time (speculation), stores its rows again with the same
    UNIQ_KEYs. `read_queue(committed=True)` returns each row of a committed job once; ordinary consumers see
    rows as they arrive, and those of a retried task twice. The keys are made of job, partition and row, so
    they are the same for the same row only if the partitions of `df` are deterministic.

    Args:
        df: The rows.
        topic: An existing topic.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        body: Column of the bodies; strings, bytes or integers, as in the other columns.
        key: Column of the keys, by which messages are indexed. Null means no key.
        tag: Column of the tags. Null means no tag.
        sharding_key: Column by which rows are distributed over the queues. Rows of one partition with equal
            values keep their order. None: consecutive rows go to one queue, the next rows to the next.
        mode: "append", or "errorifexists" to fail if the topic contains messages.
        buffer_bytes: Size of the rows that a task sends with one call.

    Raises:
        OptionInvalid: An argument is invalid, or a column is missing or has a type that cannot be sent.
        TopicNotEmpty: `mode` is "errorifexists" and the topic contains messages.
        WriteFailed: A task failed; the job is not committed.
        CommitFailed: All rows are stored, but the manifest may not be.
        ClientError: The topic does not exist, or a broker cannot be reached.
    """
    columns = WriteColumns(body, key, tag, sharding_key)
    columns.check(df.columns)
    _check_types(df, columns)
    addresses = ClientConfig(nameservers).addresses()
    job = new_job(topic, addresses, columns, buffer_bytes, SystemClock().wall_ms())
    prepare_topic(job, mode)
    used = [col(f"`{name}`") for name in dict.fromkeys(columns.named().values())]
    with _described(df.sparkSession.sparkContext, f"write_queue: {topic}"), _task_errors_raised():
        rows = df.select(*used).mapInArrow(_SparkWriter(job), f"{RECEIPT} binary").collect()
    receipts = [msgspec.json.decode(row[RECEIPT], type=PartitionReceipt) for row in rows]
    return commit(job, receipts)


class _SparkWriter:
    """A function for `mapInArrow` that writes the rows of a partition and yields one row, its receipt."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        writer = PartitionWriter(self._job, task.partitionId(), task.attemptNumber())
        receipt = msgspec.json.encode(writer.write(batches))
        yield pa.RecordBatch.from_arrays([pa.array([receipt], pa.binary())], names=[RECEIPT])
        freeze_loaded_objects()


def _check_types(df: DataFrame, columns: WriteColumns) -> None:
    types = dict(df.dtypes)
    for parameter, column in columns.named().items():
        if not _TYPES.match(types[column]):
            raise OptionInvalid(
                f"{parameter}={column!r} has type {types[column]}: cast it to string, binary or an integer"
            )


@contextmanager
def _described(context: SparkContext, text: str) -> Iterator[None]:
    """Show `text` as the description of the jobs in the Spark UI."""
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)


@contextmanager
def _task_errors_raised() -> Iterator[None]:
    """Raise the last `WriteFailed` of a task instead of Spark's error with the stack traces."""
    try:
        yield
    except PySparkException as error:
        found = _ERROR_OF_TASK.findall(str(error))
        if not found:
            raise
        raise WriteFailed(found[-1]) from error

"""`write_queue`: write the rows of a Spark DataFrame to a topic.

    driver      create the job, and the manifest topic if necessary
    each task   rows ─→ PartitionWriter ─→ topic; returns a receipt with the offsets of its rows
    driver      receipts of the tasks ─→ manifest ─→ RAYMQ_WRITE_MANIFESTS

Spark returns the result of exactly one successful attempt of each task to the driver. Therefore the manifest
does not list rows of failed attempts, or of speculative attempts that finished later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col

from cluster.client.config import ClientConfig, Nameservers
from jobs.job_errors import OptionInvalid, WriteFailed
from jobs.reading.reader import freeze_loaded_objects
from jobs.writing.commit import WriteReceipt, commit, prepare_topic
from jobs.writing.partition_writer import PartitionReceipt, PartitionWriter
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.common.clock import SystemClock

RECEIPT = "receipt"
DESCRIPTION = "spark.job.description"
_TYPES = re.compile(r"(string|binary|tinyint|smallint|int|bigint|(var)?char\(\d+\))\Z")
_SPECIAL = re.compile("[.`]")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_PROPERTIES_TYPE = "map<string,string>"
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
    properties: str | None = None,
    delay: str | int | None = None,
    mode: Literal["append", "errorifexists"] = "append",
    buffer_bytes: int = BUFFER_BYTES,
) -> WriteReceipt:
    """Write each row of `df` as a message to `topic`, and commit all rows when the last one is stored.

    `read_queue(committed=True)` returns each row of a committed job once. Ordinary consumers see rows as soon
    as they are stored. If Spark retries a task or runs it twice (speculation), its rows are stored twice with
    the same UNIQ_KEY. The key consists of job, partition and row number, so it identifies a row only if the
    partitions of `df` are deterministic.

    Args:
        df: The DataFrame to write.
        topic: The topic to write to. A new one is created by the first send, if `auto_create_topics` is set.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        body: Column of the message bodies. This and the other columns contain strings, bytes or integers.
        key: Column of the message keys, which the brokers index. Null means no key.
        tag: Column of the message tags. Null means no tag.
        sharding_key: Column by which rows are distributed over the queues. Rows of one partition with equal
            values keep their order. None: batches of consecutive rows go to the queues in turn.
        properties: Column of maps from string to string, the user properties. Names that RocketMQ reserves
            are omitted, so that the properties of messages that were read can be written again.
        delay: Column of delays in milliseconds, or the delay of all rows. The broker delivers a row when its
            delay has passed since the broker received it, even if the job fails. Null and 0 mean no delay.
            The maximum is the brokers' `timer_max_delay_s`. `read_queue(committed=True)` never returns
            delayed rows, because their offsets are not known when the job is committed. Read them without
            `committed`; a row that was written twice is delivered twice, with one UNIQ_KEY.
        mode: "append", or "errorifexists" to fail if the topic contains messages.
        buffer_bytes: Size of the rows that a task sends in one call.

    Raises:
        OptionInvalid: An argument is invalid, or a column is missing or has a type that cannot be sent.
        TopicNotEmpty: `mode` is "errorifexists" and the topic contains messages.
        WriteFailed: A task failed. The job is not committed.
        CommitFailed: All rows are stored, but it is unknown whether the job is committed.
        ClientError: The topic does not exist and is not created, or a broker cannot be reached.
    """
    columns = WriteColumns(body, key, tag, sharding_key, properties, delay)
    columns.check(df.columns)
    _check_types(df, columns)
    addresses = ClientConfig(nameservers).addresses()
    job = new_job(topic, addresses, columns, buffer_bytes, SystemClock().wall_ms())
    prepare_topic(job, mode)
    used, job = _with_plain_names(job)
    with showing_description(df.sparkSession.sparkContext, f"write_queue: {topic}"), _task_errors_raised():
        rows = df.select(*used).mapInArrow(_SparkWriter(job), f"{RECEIPT} binary").collect()
    receipts = [msgspec.json.decode(row[RECEIPT], type=PartitionReceipt) for row in rows]
    return commit(job, receipts)


def _with_plain_names(job: WriteJob) -> tuple[list[Column], WriteJob]:
    """Return the columns to write, and `job` with their names there.

    `mapInArrow` looks its columns up by name, where a dot would select a field of a struct. Such names are
    replaced.
    """
    names = dict.fromkeys(job.columns.named().values())
    plain = {name: f"column {index}" if _SPECIAL.search(name) else name for index, name in enumerate(names)}
    used = [col(f"`{name.replace('`', '``')}`").alias(plain[name]) for name in names]
    renamed = {parameter: plain[name] for parameter, name in job.columns.named().items()}
    return used, replace(job, columns=replace(job.columns, **renamed))


class _SparkWriter:
    """A function for `mapInArrow` that writes the rows of a partition, and yields its receipt as one row."""

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
        if parameter == "properties":
            if types[column] != _PROPERTIES_TYPE:
                raise OptionInvalid(
                    f"properties={column!r} has type {types[column]}: it must be {_PROPERTIES_TYPE}"
                )
        elif parameter == "delay":
            if types[column] not in _INTEGERS:
                raise OptionInvalid(
                    f"delay={column!r} has type {types[column]}: cast it to an integer, milliseconds"
                )
        elif not _TYPES.match(types[column]):
            raise OptionInvalid(
                f"{parameter}={column!r} has type {types[column]}: cast it to string, binary or an integer"
            )


@contextmanager
def showing_description(context: SparkContext, text: str) -> Iterator[None]:
    """Show `text` in the Spark UI as the description of the Spark jobs that start in the context."""
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)


@contextmanager
def _task_errors_raised() -> Iterator[None]:
    """If Spark's error contains the `WriteFailed` of a task, raise that without Spark's stack traces."""
    try:
        yield
    except PySparkException as error:
        found = _ERROR_OF_TASK.findall(str(error))
        if not found:
            raise
        raise WriteFailed(found[-1]) from error

"""`read_queue`: read a topic, or a range of its offsets, as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jobs.reading.bodies.body_decoder import Mapper
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.plan import ReadPlan, plan_read
from jobs.reading.reader import AnySplit
from jobs.reading.schema import spark_schema
from jobs.spark.bodies.body_columns import parse_body_columns
from jobs.spark.keywords import QueueKeywords, check_keywords, queue_options
from jobs.spark.placement import split_indexes


def read_queue(spark: SparkSession, topic: str | None = None, **options: Unpack[QueueKeywords]) -> DataFrame:
    """Read the confirmed messages of a topic as a DataFrame with one row per message (`jobs.reading.schema`).

    The range of offsets is fixed when this function returns: the DataFrame always has the same rows.

    `topic`, or `topics`: a list of topics, or `topicPattern`: a regular expression for full names of topics.
    The column `topic` has the topic of each row. A pattern selects no system, retry or dead-letter topics.
    `nameservers`: "host:port;host:port", a list, or None for the value of the environment or the default.
    `startingOffsets`, `endingOffsets` (exclusive): "earliest", "latest", a queue offset, or
    {"topic": {"broker": {"queueId": offset}}} as a dict or JSON, with -2 for earliest and -1 for latest.
    `startingOffsets="group:NAME"` starts at the committed offsets of a consumer group, and at the first
    offset of queues without one; `jobs.commit_read` commits the end of the read for the group.
    `startingTimestamp`, `endingTimestamp` (exclusive): a store time for all queues, in ms since the epoch or
    an aware datetime. `startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`: times by queue, in the form
    of the offsets. As in Spark's Kafka source, times take precedence over offsets.
    `startingOffsetsByTimestampStrategy`: if a queue has messages, but none at its starting time or later,
    "error" fails the read and "latest" reads nothing from the queue.
    `minPartitions`: minimum number of partitions, distributed by the sizes of the queues (default: Spark's
    parallelism). `maxRecordsPerPartition`: maximum number of messages of a partition.
    `failOnDataLoss`: fail with `DataLoss` if requested offsets do not exist; if False, log and skip them.
    `columns`: the columns to read, as Spark cannot push its column pruning into a Python reader.
    `tags`: read only messages with one of these tags: "a || b".
    `sql`: read only messages whose properties match a SQL92 expression: "a > 10 AND region IN ('x', 'y')".
    `committed`: skip messages that `write_queue` did not commit: those of failed attempts, and of jobs that
    had not finished when this function was called (default: False).
    `schema` (DDL or StructType), `format` ("json", "msgpack", or "avro" with `avroSchema`): decode the bodies
    into these columns, which replace `body`. `mode`, as in Spark's JSON reader: "PERMISSIVE" (default) keeps
    malformed bodies as nulls, and as text in `_corrupt_record` (binary formats: base64) if the schema has
    this column; "DROPMALFORMED" drops them; "FAILFAST" fails with queue and offset. Without a schema, a body
    is malformed if it cannot be decompressed: "PERMISSIVE" keeps the stored bytes, and the column `bodyError`
    has the reason if `columns` lists it.
    `mapFiles`: map the files of stores on the executor's machine; if False, fetch all from the brokers.
    `replica`: "master" (default) fails with BrokerUnreachable if a broker has no master. "any" then reads
    what its slave has confirmed, which may lack the newest messages; not with `committed` and "group:NAME".
    `lake`: read history from the Iceberg table of the topic (docs/lake.md): "only" reads the table, without a
    cluster; "with_tail" continues in the log from the offsets that the table has reached, so that each
    message is read once. `warehouse` (default: "lake", below RAYMQ_HOME), `catalog` (PyIceberg's properties),
    `namespace`: where it is. `where`: read only rows for which this expression is true, such as
    "queueId = 3 AND keys = 'order-17'". Not with `committed`.

    Raises `OffsetsInvalid`, `OptionInvalid`, `DataLoss`, `cluster.client.ClientError` (TopicNotFound …), and
    with `lake` `LakeNotInstalled`, `LakeInvalid` and `LakeUnavailable`.
    """
    given = check_keywords(options, QueueKeywords)
    read = queue_options(topic, given)
    bodies = parse_body_columns(spark, given.get("columns"), given)
    if bodies is not None:
        read = replace(read, columns=bodies.read_columns)
    plan = _plan(read)
    partitions = given.get("minPartitions", spark.sparkContext.defaultParallelism)
    splits = plan.splits(partitions, given.get("maxRecordsPerPartition"))
    reader = plan.reader(splits)
    if bodies is None:
        frame = frame_of_splits(spark, reader, splits, spark_schema(reader.columns))
    else:
        mapped = frame_of_splits(spark, bodies.mapper(reader), splits, bodies.mapped_schema)
        frame = bodies.finish(mapped)
    plan.remember(frame)
    return frame


def _plan(read: ReadOptions) -> ReadPlan:
    if read.lake is None:
        return plan_read(read)
    from jobs.lake.history import plan_lake_read  # PyIceberg is an optional dependency

    return plan_lake_read(read)


def frame_of_splits(
    spark: SparkSession, reader: Mapper, splits: Sequence[AnySplit], schema: str | StructType
) -> DataFrame:
    """Return a DataFrame with one partition per split, in the order of the splits.

    PySpark 3.5 has no Python data sources. The DataFrame is therefore one row, the index of a split, in each
    partition (`split_indexes`). `reader` maps each index to the messages of that split, with the columns
    `schema`.
    """
    if not splits:
        return spark.createDataFrame([], schema)
    return split_indexes(spark, splits).mapInArrow(reader, schema)

"""`read_queue`: read a topic, or a range of its offsets, as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from cluster.client.config import Nameservers
from jobs.describe import describe_topic, find_offsets
from jobs.job_errors import DataLoss
from jobs.reader import SplitsReader
from jobs.schema import resolve_columns, spark_schema
from jobs.splits import QueueState, Split, choose_ranges, cut_splits
from jobs.starting_offsets import EARLIEST, LATEST, Offsets, OffsetsOption, parse_offsets
from jobs.times import (
    Strategy,
    Times,
    TimestampOption,
    TimestampsOption,
    check_order,
    check_strategy,
    ending_offsets,
    parse_times,
    starting_offsets,
)
from store.logs import get_logger

_log = get_logger(__name__)


def read_queue(
    spark: SparkSession,
    topic: str,
    *,
    nameservers: Nameservers | None = None,
    startingOffsets: OffsetsOption = "earliest",  # noqa: N803 - the names of Spark's own sources
    endingOffsets: OffsetsOption = "latest",  # noqa: N803
    startingTimestamp: TimestampOption | None = None,  # noqa: N803
    endingTimestamp: TimestampOption | None = None,  # noqa: N803
    startingOffsetsByTimestamp: TimestampsOption | None = None,  # noqa: N803
    endingOffsetsByTimestamp: TimestampsOption | None = None,  # noqa: N803
    startingOffsetsByTimestampStrategy: Strategy = "error",  # noqa: N803
    minPartitions: int | None = None,  # noqa: N803
    maxRecordsPerPartition: int | None = None,  # noqa: N803
    failOnDataLoss: bool = True,  # noqa: N803
    columns: Sequence[str] | None = None,
    mapFiles: bool = True,  # noqa: N803
) -> DataFrame:
    """Read the confirmed messages of `topic` as a DataFrame with one row per message (see `jobs.schema`).

    The range of offsets is fixed when this function returns: the DataFrame always has the same rows.

    `startingOffsets`, `endingOffsets` (exclusive): "earliest", "latest", a queue offset, or
    {"topic": {"broker": {"queueId": offset}}} as a dict or JSON, with -2 for earliest and -1 for latest.
    `startingTimestamp`, `endingTimestamp` (exclusive): a store time for all queues, in ms since the epoch or
    an aware datetime. `startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`: times by queue, in the form
    of the offsets. As in Spark's Kafka source, times take precedence over offsets.
    `startingOffsetsByTimestampStrategy`: if a queue has messages, but none at its starting time or later,
    "error" fails the read and "latest" reads nothing from the queue.
    `minPartitions`: minimum number of partitions, distributed by the sizes of the queues (default: Spark's
    parallelism). `maxRecordsPerPartition`: maximum number of messages of a partition.
    `failOnDataLoss`: fail with `DataLoss` if requested offsets do not exist; if False, log and skip them.
    `columns`: the columns to read, as Spark cannot push its column pruning into a Python reader.
    `mapFiles`: map the files of stores on the executor's machine; if False, fetch all from the brokers.

    Raises `OffsetsInvalid`, `OptionInvalid`, `DataLoss`, and `cluster.client.ClientError` (TopicNotFound …).
    """
    chosen = resolve_columns(columns)
    starting = parse_offsets("startingOffsets", startingOffsets, EARLIEST)
    ending = parse_offsets("endingOffsets", endingOffsets, LATEST)
    since = parse_times("starting", startingTimestamp, startingOffsetsByTimestamp)
    until = parse_times("ending", endingTimestamp, endingOffsetsByTimestamp)
    check_order(since, until)
    check_strategy(startingOffsetsByTimestampStrategy)
    states = describe_topic(nameservers, topic)
    if since is not None:
        starting = _since(nameservers, since, states, startingOffsetsByTimestampStrategy)
    if until is not None:
        ending = ending_offsets(states, find_offsets(nameservers, until.by_queue(states)))
    ranges, missing = choose_ranges(states, starting, ending)
    if missing and failOnDataLoss:
        raise DataLoss(missing)
    for each in missing:
        _log.warning("offset_range_missing", range=str(each))
    parallelism = spark.sparkContext.defaultParallelism
    splits = cut_splits(
        ranges, parallelism if minPartitions is None else minPartitions, maxRecordsPerPartition
    )
    return frame_of_splits(spark, SplitsReader(splits, chosen, failOnDataLoss, mapFiles), splits)


def _since(
    nameservers: Nameservers | None, times: Times, states: Sequence[QueueState], strategy: str
) -> Offsets:
    return starting_offsets(times, states, find_offsets(nameservers, times.by_queue(states)), strategy)


def frame_of_splits(spark: SparkSession, reader: SplitsReader, splits: Sequence[Split]) -> DataFrame:
    """Return a DataFrame whose n-th partition contains the messages of the n-th split.

    PySpark 3.5 has no Python data sources. So the DataFrame is a range of numbers, one in each partition,
    that `reader` maps to the messages of the split with that number.
    """
    schema = spark_schema(reader.columns)
    if not splits:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(splits), 1, len(splits)).mapInArrow(reader, schema)

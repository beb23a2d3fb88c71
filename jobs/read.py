"""`read_queue`: a topic, or a range of its offsets, as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from cluster.client.config import Nameservers
from jobs.describe import describe_topic, find_offsets
from jobs.job_errors import DataLoss
from jobs.reader import SplitsReader
from jobs.schema import chosen_columns, spark_schema
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
    """Read the messages of `topic` that are confirmed now, one row a message (see `jobs.schema`).

    The range is fixed when this returns: the DataFrame gives the same rows however often it is computed.

    `startingOffsets`, `endingOffsets` (exclusive): "earliest", "latest", a queue offset, or
    {"topic": {"broker": {"queueId": offset}}} as a dict or JSON, where -2 is earliest and -1 latest.
    `startingTimestamp`, `endingTimestamp` (exclusive): the same by time, in ms since the epoch or an aware
    datetime; `startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`: by queue, in the shape of the offsets.
    They go over offsets, as in Spark's Kafka source, and so does the default of
    `startingOffsetsByTimestampStrategy`: a queue with no message as new as its time is an error, unless the
    strategy is "latest"; a queue without any message is none.
    `minPartitions`: at least so many Spark partitions (default: Spark's own parallelism), cut by the queues'
    sizes; `maxRecordsPerPartition`: none with more messages.
    `failOnDataLoss`: whether offsets that were asked for and are not there (any more) fail the read with a
    `DataLoss` that lists them; otherwise they are logged and left out.
    `columns`: only these; Spark cannot push its own pruning into a Python reader.
    `mapFiles`: whether files on the executor's own machine are mapped; otherwise all is fetched from brokers.

    Raises `OffsetsInvalid`, `OptionInvalid`, `DataLoss`, and `cluster.client.ClientError` (TopicNotFound …).
    """
    chosen = chosen_columns(columns)
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
        ending = ending_offsets(states, find_offsets(nameservers, until.of(states)))
    ranges, missing = choose_ranges(states, starting, ending)
    if missing and failOnDataLoss:
        raise DataLoss(missing)
    for each in missing:
        _log.warning("read_range_missing", range=str(each))
    parallelism = spark.sparkContext.defaultParallelism
    splits = cut_splits(
        ranges, parallelism if minPartitions is None else minPartitions, maxRecordsPerPartition
    )
    return frame_of_splits(spark, SplitsReader(splits, chosen, failOnDataLoss, mapFiles), splits)


def _since(
    nameservers: Nameservers | None, times: Times, states: Sequence[QueueState], strategy: str
) -> Offsets:
    return starting_offsets(times, states, find_offsets(nameservers, times.of(states)), strategy)


def frame_of_splits(spark: SparkSession, reader: SplitsReader, splits: Sequence[Split]) -> DataFrame:
    """Make the DataFrame whose n-th partition is the n-th split.

    PySpark 3.5 has no data sources in Python; a range of numbers, one a partition, needs no Python worker of
    its own, and tells each task which split is its.
    """
    schema = spark_schema(reader.columns)
    if not splits:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(splits), 1, len(splits)).mapInArrow(reader, schema)

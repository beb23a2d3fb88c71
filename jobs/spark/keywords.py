"""The keyword arguments of `read_queue` and `read_stream`: their types, names and parsing.

Names and meanings are those of Spark's Kafka source if it has the option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, TypedDict, TypeVar, cast, get_args, get_type_hints

from pyspark.sql.types import StructType

from cluster.client.config import Nameservers
from cluster.client.transport.topic_route import Replica
from jobs.job_errors import OptionInvalid
from jobs.option_values import I32_MAX, I64_MAX, as_choice, as_flag, as_integer, refuse_unknown
from jobs.reading.options.lake_options import LakeOptions, parse_lake
from jobs.reading.options.read_options import Edge, ReadOptions, parse_replica, parse_start
from jobs.reading.options.topics import parse_topics
from jobs.reading.row_filters import MODES, PERMISSIVE
from jobs.reading.schema import resolve_columns
from jobs.reading.selection import parse_selector
from jobs.reading.starting_offsets import LATEST, Offsets, OffsetsOption, parse_offsets
from jobs.reading.times import Strategy, TimestampOption, TimestampsOption, parse_strategy, parse_times


class ReadKeywords(TypedDict, total=False):
    """Keyword arguments of `read_queue` and of `read_stream`."""

    topics: Sequence[str]
    topicPattern: str
    nameservers: Nameservers | None
    startingOffsets: OffsetsOption
    startingTimestamp: TimestampOption | None
    startingOffsetsByTimestamp: TimestampsOption | None
    startingOffsetsByTimestampStrategy: Strategy
    minPartitions: int
    failOnDataLoss: bool
    columns: Sequence[str] | None
    tags: str | None
    sql: str | None
    mapFiles: bool
    schema: str | StructType
    format: Literal["json", "msgpack", "avro"]
    mode: str
    avroSchema: str
    replica: Replica
    lake: Literal["only", "with_tail"]
    warehouse: str
    catalog: Mapping[str, str]
    where: str
    namespace: str


class QueueKeywords(ReadKeywords, total=False):
    """Keyword arguments of `read_queue`."""

    endingOffsets: OffsetsOption
    endingTimestamp: TimestampOption | None
    endingOffsetsByTimestamp: TimestampsOption | None
    maxRecordsPerPartition: int | None
    committed: bool


class StreamKeywords(ReadKeywords, total=False):
    """Keyword arguments of `read_stream`, besides `checkpointLocation`."""

    maxOffsetsPerTrigger: int | None
    pollIntervalMs: int
    fetchOffsetNumRetries: int
    fetchOffsetRetryIntervalMs: int


Keywords = TypeVar("Keywords", bound=ReadKeywords)

_RANGES = {
    "minPartitions": (1, I32_MAX),
    "maxRecordsPerPartition": (1, I64_MAX),
    "maxOffsetsPerTrigger": (1, I64_MAX),
    "pollIntervalMs": (1, I32_MAX),
    "fetchOffsetNumRetries": (0, I32_MAX),
    "fetchOffsetRetryIntervalMs": (0, I32_MAX),
}
"""Minimum and maximum of the options that are integers."""


def check_keywords(given: Keywords, known: type[Keywords]) -> Keywords:
    """Return the arguments that are not None, with flags and integers that were given as text converted.

    None stands for the default. Raises `OptionInvalid` if a name is not one of `known`, or if a flag or an
    integer is invalid.
    """
    kinds = get_type_hints(known)
    refuse_unknown(given, kinds)
    return cast(
        "Keywords",
        {name: _converted(name, kinds[name], each) for name, each in given.items() if each is not None},
    )


def _converted(name: str, kind: Any, value: object) -> object:
    plain = {each for each in get_args(kind) or (kind,) if each is not NoneType}
    if plain == {bool}:
        return as_flag(name, value)
    return as_integer(name, value, *_RANGES[name]) if plain == {int} else value


def queue_options(topic: str | None, given: QueueKeywords) -> ReadOptions:
    """Parse the options of a bounded read. Raises `OffsetsInvalid` and `OptionInvalid`."""
    ending = Edge(
        "endingOffsets",
        parse_offsets("endingOffsets", given.get("endingOffsets", "latest"), LATEST),
        parse_times("ending", given.get("endingTimestamp"), given.get("endingOffsetsByTimestamp")),
    )
    return _options(topic, given, "earliest", ending, committed=given.get("committed", False))


def stream_options(topic: str | None, given: StreamKeywords) -> ReadOptions:
    """Parse the options of a stream. Raises `OffsetsInvalid` and `OptionInvalid`."""
    read = _options(topic, given, "latest", Edge("endingOffsets", parse_offsets("", "latest", LATEST)))
    if read.replica != "master":
        raise OptionInvalid(
            f"replica={read.replica!r} is not supported by streams, because a slave may lack messages that"
            " the stream has already read from the master: promote the slave, or read with read_queue"
        )
    if read.lake is not None:
        _check_stream_of_history(read, read.lake)
    return read


def _check_stream_of_history(read: ReadOptions, lake: LakeOptions) -> None:
    if not lake.has_tail:
        raise OptionInvalid("lake='only' has an end: read it with read_queue, or give lake='with_tail'")
    if read.topics.pattern:
        raise OptionInvalid("topicPattern and lake: a stream begins in the tables of topics given by name")
    if read.starting.times is None and read.starting.offsets == Offsets(LATEST) and not read.starting.group:
        raise OptionInvalid(
            "lake, and a start at the latest message: give startingOffsets='earliest', or startingTimestamp"
        )


def _options(
    topic: str | None, given: ReadKeywords, start: str, ending: Edge, *, committed: bool = False
) -> ReadOptions:
    times = parse_times("starting", given.get("startingTimestamp"), given.get("startingOffsetsByTimestamp"))
    starting = parse_start("startingOffsets", given.get("startingOffsets", start), times)
    return ReadOptions(
        parse_topics(topic, given.get("topics"), given.get("topicPattern")),
        starting,
        ending,
        given.get("nameservers"),
        parse_strategy(given.get("startingOffsetsByTimestampStrategy", "error")),
        resolve_columns(given.get("columns"), may_be_empty="schema" in given),
        parse_selector(given.get("tags"), given.get("sql")),
        committed,
        given.get("failOnDataLoss", True),
        given.get("mapFiles", True),
        # With a schema, a body is also malformed if it does not fit, so the mode is applied after decoding.
        PERMISSIVE if "schema" in given else as_choice("mode", given.get("mode", PERMISSIVE), MODES),
        parse_replica(given.get("replica", "master")),
        parse_lake(*(given.get(name) for name in ("lake", "warehouse", "catalog", "where", "namespace"))),
    )

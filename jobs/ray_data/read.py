"""`read_dataset`: read a topic, or a range of its offsets, as a Ray Data dataset.

    messages = read_dataset("orders", nameservers="127.0.0.1:9876", columns=["body", "tags"])

The offset ranges of the queues are cut into splits, as for Spark. Each split is one Ray read task, so several
tasks can read one queue in parallel. A task yields blocks while it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from cluster.client.config import Nameservers
from cluster.client.message_selector import ALL_MESSAGES
from cluster.client.transport.topic_route import Replica
from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.option_values import INTEGER, as_choice, as_flag, refuse_unknown
from jobs.ray_data.placement import place_read
from jobs.reading.chunk import MICROSECONDS, TIMESTAMPS
from jobs.reading.options.lake_options import parse_lake
from jobs.reading.options.read_options import Edge, ReadOptions, parse_replica, parse_start
from jobs.reading.options.topics import TopicNames, parse_topics
from jobs.reading.plan import ReadPlan, plan_read
from jobs.reading.reader import SplitsReader
from jobs.reading.row_filters import MODES
from jobs.reading.schema import resolve_columns
from jobs.reading.selection import parse_selector
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets, parse_offsets
from jobs.reading.times import Times, parse_times
from store.kernels.arrow import ALL_FIELDS

Offset = int | datetime | str | Mapping[str, Mapping[str, Mapping[int, int | str]]]

START_OFFSET, END_OFFSET = "start_offset", "end_offset"
_WORDS: Mapping[object, int] = {"earliest": EARLIEST, "latest": LATEST}
_RAY_OPTIONS = tuple(
    name
    for name, each in signature(ray.data.read_datasource).parameters.items()
    if each.kind is Parameter.KEYWORD_ONLY
)
_NO_MESSAGE = "latest"
"""As in `read_kafka`, read nothing from queues without a message at `start_offset`."""
_TASK_MESSAGES = 100_000
"""Number of messages of a read task, if the caller does not set the number of tasks."""
_ROW_BYTES = 256
"""Estimated size of a row with a body, from which Ray derives the number of tasks."""


def read_dataset(
    topic: str | Sequence[str] | None = None,
    *,
    topic_pattern: str | None = None,
    nameservers: Nameservers | None = None,
    trigger: Literal["once"] = "once",
    start_offset: Offset = "earliest",
    end_offset: Offset = "latest",
    columns: Sequence[str] | None = None,
    tags: str | None = None,
    sql: str | None = None,
    committed: bool = False,
    mode: Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"] = "PERMISSIVE",
    fail_on_data_loss: bool = True,
    map_files: bool = True,
    replica: Replica = "master",
    lake: Literal["only", "with_tail"] | None = None,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    where: str | None = None,
    namespace: str | None = None,
    **ray_options: Any,
) -> ray.data.Dataset:
    """Read the messages that are confirmed now as a dataset with one row each (`jobs.reading.schema`).

    Args:
        topic, topic_pattern: The topic, a list of topics, or a regular expression for their full names.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        start_offset: "earliest", "latest", an offset, a datetime (store time; UTC without a time zone),
            "group:NAME" (see `jobs.commit_read`), or {"topic": {"broker": {queue id: offset}}}.
        end_offset: End of the read (exclusive), in the same forms. Unlisted queues are read as a whole.
        columns: The columns to read; all by default.
        tags, sql: Read only messages with one of these tags ("a || b"), or that match a SQL92 expression.
        mode: If a body cannot be decompressed: keep the stored bytes, drop the message, or fail.
        committed: Skip messages of write jobs (`write_dataset`, `write_queue`) that are not committed.
        fail_on_data_loss: Fail with `DataLoss` if requested offsets do not exist. False: log and skip them.
        map_files: Run tasks on the brokers' nodes, if possible, and map the stores' files. False: fetch.
        replica: "any": of a broker without a master, read what its slave has; see docs/replication.md.
        lake, warehouse, catalog, where, namespace: Read history from the topic's table (docs/lake.md).
        ray_options: Options of `ray.data.read_datasource`; `override_num_blocks` is 1 per 100,000 messages.

    Raises:
        OffsetsInvalid, OptionInvalid, DataLoss: An argument is invalid, or requested offsets do not exist.
        ClientError: The topic does not exist, or a broker has no master or cannot be reached.
    """
    _check_trigger(trigger)
    options = ReadOptions(
        _topics(topic, topic_pattern),
        _start(start_offset),
        _edge(END_OFFSET, end_offset, LATEST),
        nameservers,
        _NO_MESSAGE,
        resolve_columns(columns),
        parse_selector(tags, sql),
        **_flags(committed=committed, fail_on_data_loss=fail_on_data_loss, map_files=map_files),
        mode=as_choice("mode", mode, MODES),
        replica=parse_replica(replica),
        lake=parse_lake(lake, warehouse, catalog, where, namespace),
    )
    return _planned_dataset(options, ray_options)


class QueueDatasource(Datasource):
    """Ray Data source that reads the offset ranges of a plan; see `read_dataset`."""

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__()
        self._plan = plan

    @property
    def task_count(self) -> int:
        """Number of read tasks for this many messages. Ray's default, 200, is slow: most tasks are short."""
        return max(math.ceil(self._plan.message_count / _TASK_MESSAGES), 1)

    def get_name(self) -> str:
        """Return the name that Ray shows for the read tasks."""
        return "RayMQ"

    def estimate_inmemory_data_size(self) -> int:
        """Return an estimate of the size of all rows in bytes."""
        return self._plan.message_count * _ROW_BYTES

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        """Return about `parallelism` read tasks, each for an offset range of one queue.

        If there are no messages, returns one task that yields an empty table with the schema.
        """
        options = self._plan.options
        schema = arrow_schema(options.columns)
        # The number of rows is unknown if the read may skip messages.
        is_whole = not options.committed and options.selector == ALL_MESSAGES and options.lake is None
        is_exact = options.fail_on_data_loss and is_whole
        tasks = []
        for split in self._plan.splits(max(parallelism, 1)):
            reader = self._plan.reader([split])
            rows = split.message_count if is_exact else None
            size_bytes = split.message_count * _ROW_BYTES
            metadata = BlockMetadata(rows, size_bytes, exec_stats=None, input_files=None)
            tasks.append(ReadTask(partial(_blocks, reader, schema), metadata, schema, per_task_row_limit))
        if not tasks:
            metadata = BlockMetadata(0, 0, exec_stats=None, input_files=None)
            tasks.append(ReadTask(lambda: [schema.empty_table()], metadata, schema))
        return tasks


def _blocks(reader: SplitsReader, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the messages of `reader` as tables; an empty table if it has no messages."""
    is_empty = True
    for batch in reader.read_all():
        is_empty = False
        yield pa.Table.from_batches([batch])
    if is_empty:
        yield schema.empty_table()


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of the message columns `columns`."""
    return pa.schema(
        [(name, MICROSECONDS if name in TIMESTAMPS else ALL_FIELDS[name].type) for name in columns]
    )


def _planned_dataset(options: ReadOptions, ray_options: Mapping[str, Any]) -> ray.data.Dataset:
    refuse_unknown(ray_options, (*signature(read_dataset).parameters, *_RAY_OPTIONS))
    plan = _plan(options)
    datasets = []
    for part, options_of_part in place_read(plan, ray_options):
        source = QueueDatasource(part)
        chosen = {"override_num_blocks": source.task_count, **options_of_part}
        datasets.append(ray.data.read_datasource(source, **chosen))
    dataset = datasets[0].union(*datasets[1:]) if len(datasets) > 1 else datasets[0]
    plan.remember(dataset)
    return dataset


def _plan(options: ReadOptions) -> ReadPlan:
    if options.lake is None:
        return plan_read(options)
    from jobs.lake.history import plan_lake_read  # PyIceberg is an optional dependency

    return plan_lake_read(options)


def _flags(**given: object) -> dict[str, bool]:
    return {name: as_flag(name, value) for name, value in given.items()}


def _check_trigger(trigger: str) -> None:
    if trigger != "once":
        raise OptionInvalid(
            f"trigger={trigger!r} is not supported: use 'once', or read streams with a consumer"
        )


def _topics(topic: str | Sequence[str] | None, pattern: str | None) -> TopicNames:
    names = ("topic", "topic_pattern")
    if topic is None or isinstance(topic, str):
        return parse_topics(topic, None, pattern, names)
    return parse_topics(None, topic, pattern, names)


def _start(value: Offset) -> Edge:
    if isinstance(value, str):
        _word(value)
        return parse_start(START_OFFSET, value, None)
    return _edge(START_OFFSET, value, EARLIEST)


def _edge(option: str, value: Offset, default: int) -> Edge:
    """Parse the value of `start_offset` or `end_offset`: offsets, or a datetime.

    `default` is the offset of queues that are not listed.
    """
    if not isinstance(value, datetime):
        return Edge(option, parse_offsets(option, _numbers(value), default))
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    edge: Literal["starting", "ending"] = "starting" if option == START_OFFSET else "ending"
    times = parse_times(edge, value, None)
    assert times is not None
    return Edge(option, Offsets(default), Times(option, times.everywhere))


def _numbers(value: Any) -> Any:
    """Replace "earliest" and "latest" in a nested mapping of offsets by the numbers -2 and -1 of Spark."""
    if isinstance(value, Mapping):
        return {
            key: _numbers(each) if isinstance(each, Mapping) else _word(each) for key, each in value.items()
        }
    return _word(value)


def _word(value: Any) -> Any:
    """Return the number of a word. Raises OffsetsInvalid for a negative number, Spark's code of a word."""
    number = int(value) if isinstance(value, str) and INTEGER.fullmatch(value) else value
    if isinstance(number, int) and number < 0:
        raise OffsetsInvalid(f"offset {number} is negative: give 0 or more, 'earliest' or 'latest'")
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value

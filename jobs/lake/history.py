"""Plan a read of history: the files of one snapshot of each table, and the rest of the log after it.

    queue   0 ─── first ──────────────── B ──────────── end
                    │     the table      │    the log    │      B: the offset that the snapshot has reached

Each queue is one range of offsets, which the options choose as in a read of the log, and is divided at B.
Times select rows of the table by their store time, which increases with the offsets of a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc
import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
    Or,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids, translate_column_names
from pyiceberg.io.pyarrow import PyArrowFileIO, expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.types import NestedField
from pyparsing import ParseException

from cluster.client import Admin
from cluster.control.topology.topology import DEFAULT_CLUSTER
from cluster.paths import home_of
from jobs.job_errors import DataLoss, LakeInvalid, MissingRange, OptionInvalid
from jobs.lake.catalogs import ERRORS_SUFFIX, lake_errors, lake_settings, open_catalog
from jobs.lake.lake_table import BODY, LakeGap, LakeState, LakeTable
from jobs.reading.describe import states_of
from jobs.reading.log_epochs import epochs_after
from jobs.reading.options.lake_options import LakeOptions
from jobs.reading.options.read_options import Edge, ReadOptions
from jobs.reading.plan import ReadPlan, ends_of, find_end, find_start
from jobs.reading.row_filters import SelectedRows
from jobs.reading.splits import NO_STORE, QueueState, Split, choose_ranges
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from jobs.reading.table_files import TABLE_COLUMNS, FilePart, RowBounds, TableSource, TableSplit
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

ERROR_CHARACTERS = 200
OFFSET_MAX = 2**63 - 1
ALWAYS_TRUE = AlwaysTrue()
_KINDS: dict[str, Any] = {"==": EqualTo, ">=": GreaterThanOrEqual, "<": LessThan}
"""The expressions of PyIceberg, whose constructors are not typed."""


@dataclass(frozen=True)
class TopicHistory:
    """A table at one snapshot: the rows that a read may take from it.

    `errors` is the table of the messages whose bodies cannot be decoded, at a snapshot of the same offsets or
    later ones.
    """

    table: LakeTable
    state: LakeState
    errors: TopicHistory | None = None

    def scan(self, wanted: BooleanExpression, *columns: str, limit: int | None = None) -> DataScan:
        """Return a scan of the snapshot, which must exist."""
        return self.table.iceberg.scan(
            wanted, selected_fields=columns or ("*",), snapshot_id=self.state.snapshot_id, limit=limit
        )

    def first(self, queue: MessageQueue) -> int:
        """Return the first offset of a queue that may be in the table."""
        return next((each.end for each in self.gaps(queue) if each.begin == 0), 0)

    def gaps(self, queue: MessageQueue) -> Iterator[LakeGap]:
        """Yield the gaps of a queue."""
        return (each for each in self.state.gaps if (each.broker, each.queue) == queue[1:])

    def file_system(self) -> pafs.FileSystem:
        """Return the file system in which the table writes its files."""
        properties = self.table.iceberg.io.properties
        return PyArrowFileIO(properties).fs_by_scheme(
            *PyArrowFileIO.parse_location(self.table.location, properties)[:2]
        )

    def files(
        self,
        wanted: BooleanExpression = ALWAYS_TRUE,
        where: pc.Expression | None = None,
        bounds: tuple[RowBounds, ...] | None = None,
    ) -> Iterator[TableSplit]:
        """Yield the files that may have wanted rows: one uncut split for each file system.

        `where` and `bounds` select the same rows for the readers of the files. Raises `LakeUnavailable`, and
        `LakeInvalid` if rows were deleted without rewriting their files.
        """
        iceberg = self.table.iceberg
        with lake_errors(f"the table {self.table.name}"):
            tasks = list(self.scan(wanted).plan_files()) if self.state.snapshot_id is not None else []
        if any(each.delete_files for each in tasks):
            raise LakeInvalid(
                f"rows of the table {self.table.name} are marked as deleted in files of their own, which"
                " RayMQ does not read: rewrite its data files (Spark: CALL system.rewrite_data_files)"
            )
        parts: dict[tuple[str, str], list[FilePart]] = {}
        for file in sorted((each.file for each in tasks), key=self.table.oldest_row):
            scheme, netloc, path = PyArrowFileIO.parse_location(file.file_path, iceberg.io.properties)
            groups = max(len(file.split_offsets or ()), 1)
            parts.setdefault((scheme, netloc), []).append(FilePart(path, 0, groups, file.record_count))
        io = PyArrowFileIO(iceberg.io.properties)
        for place, found in parts.items():
            yield TableSplit(
                TableSource(self.table.topic, io.fs_by_scheme(*place), where, bounds), tuple(found)
            )

    def selected_files(self, where: str, bounds: tuple[RowBounds, ...] | None) -> Iterator[TableSplit]:
        """Yield the files that may have rows within the bounds for which `where` is true; see `files`."""
        selected = _selected(self, where)
        wanted = ALWAYS_TRUE if bounds is None else Or(AlwaysFalse(), AlwaysFalse(), *map(_rows_of, bounds))
        return self.files(And(wanted, selected.in_table), selected.of_files, bounds)


@dataclass(frozen=True)
class Span:
    """What a read wants of one queue: offsets [begin, end), divided at `border`, and times in ms."""

    queue: MessageQueue
    begin: int
    end: int
    border: int
    begin_ms: int | None = None
    end_ms: int | None = None


def plan_lake_read(options: ReadOptions) -> ReadPlan:
    """Return the plan of a read with the option `lake`; see `plan_with_states`."""
    return plan_with_states(options)[0]


def plan_with_states(options: ReadOptions) -> tuple[ReadPlan, list[QueueState]]:
    """Return the plan of a read with the option `lake`, and the queues of the log that it continues in.

    Raises `OptionInvalid`, `OffsetsInvalid`, `DataLoss`, `LakeInvalid`, `LakeUnavailable`, and
    `cluster.client.ClientError` if the read continues in the log.
    """
    lake = options.lake
    assert lake is not None
    if not lake.has_tail:
        histories = open_histories(lake, options.topics.names)
        starting, ending = _offsets(options.starting, EARLIEST), _offsets(options.ending, LATEST)
        return _plan(options, lake, histories, [], starting, ending), []
    with Admin(options.nameservers) as admin:
        topics = options.topics.find(admin)
        # Before the offsets of the queues, so that the log reaches beyond the snapshot.
        histories = open_histories(lake, topics)
        states = states_of(admin, *topics, replica=options.replica)
        starting, ending = find_start(admin, options, states), find_end(admin, options, states)
    return _plan(options, lake, histories, states, starting, ending), states


def stream_sources(options: ReadOptions) -> tuple[dict[str, TableSource], SelectedRows | None]:
    """Return the files of the table of each topic of a stream, and the rows of the log that it returns.

    Raises as `open_histories` does.
    """
    lake = options.lake
    assert lake is not None
    histories = open_histories(lake, options.topics.names)
    _check_columns(options, histories)
    selected = {topic: _selected(each, lake.where) for topic, each in histories.items()}
    sources = {
        topic: TableSource(topic, each.file_system(), selected[topic].of_files)
        for topic, each in histories.items()
    }
    return sources, next((each.of_log for each in selected.values()), None)


def open_histories(lake: LakeOptions, topics: Iterable[str]) -> dict[str, TopicHistory]:
    """Return the tables of topics at their current snapshots.

    Raises `OptionInvalid` if a topic has no table, `LakeInvalid`, and `LakeUnavailable`.
    """
    settings = lake_settings(lake.warehouse, home_of(DEFAULT_CLUSTER), lake.catalog, lake.namespace)
    catalog = open_catalog(settings)
    return {topic: _open(catalog, settings.namespace, topic, settings.warehouse) for topic in topics}


def _open(catalog: Catalog, namespace: str, topic: str, warehouse: str) -> TopicHistory:
    table = LakeTable.find(catalog, namespace, topic)
    if table is None:
        raise OptionInvalid(
            f"topic {topic} has no table in the warehouse {warehouse}: give the right warehouse=,"
            " catalog= and namespace=, list the topic under `lakes:`, or read it without lake="
        )
    state = table.state()
    # After the table, because a round commits errors first.
    found = LakeTable.find(catalog, namespace, topic, ERRORS_SUFFIX)
    errors = (
        None if found is None else TopicHistory(found, replace(state, snapshot_id=found.state().snapshot_id))
    )
    return TopicHistory(table, state, errors)


def _check_columns(options: ReadOptions, histories: Mapping[str, TopicHistory]) -> None:
    for history in histories.values():
        if BODY in options.columns and history.table.bodies:
            raise OptionInvalid(
                f"the table {history.table.name} has decoded columns instead of bodies: give columns= without"
                " body and no schema=, or read its columns with PyIceberg or Spark's format iceberg"
            )


def _offsets(edge: Edge, everywhere: int) -> Offsets:
    return edge.offsets if edge.times is None else Offsets(everywhere)


def _plan(
    options: ReadOptions,
    lake: LakeOptions,
    histories: Mapping[str, TopicHistory],
    states: Sequence[QueueState],
    starting: Offsets,
    ending: Offsets,
) -> ReadPlan:
    _check_columns(options, histories)
    whole = _whole_queues(histories, states)
    logs = {each.queue: each for each in states}
    borders = {queue: end for each in histories.values() for queue, end in each.state.offsets.items()}
    if options.starting.times is not None:
        # The first message of the log may have a predecessor of that time in the table, or one that is lost.
        known = {q: max(borders.get(q, 0), log.min_offset) for q, log in logs.items()}
        later = {q: offset for q, offset in starting.listed.items() if offset > known[q]}
        starting = Offsets(EARLIEST, later)
    if options.ending.times is not None:
        ending = Offsets(LATEST, {q: max(end, borders.get(q, 0)) for q, end in ending.listed.items()})
    ranges, missing = choose_ranges(whole, starting, ending, (options.starting.option, options.ending.option))
    times = options.starting.times, options.ending.times
    spans = [
        Span(
            each.queue,
            each.begin,
            each.end,
            borders.get(each.queue, 0),
            *(edge.wanted(each.queue) if edge else None for edge in times),
        )
        for each in ranges
    ]
    missing += [lost for span in spans for lost in _lost(span, histories[span.queue.topic], logs)]
    if missing and options.fail_on_data_loss:
        raise DataLoss(missing)
    for lost in missing:
        get_logger(__name__).warning("offset_range_missing", range=str(lost))
    tail = [
        Split(each.queue, max(each.begin, each.border, log.min_offset), each.end, log.location)
        for each in spans
        if (log := logs.get(each.queue)) is not None
    ]
    tables: list[TableSplit] = []
    for topic, history in histories.items():
        parts = _parts([each for each in spans if each.queue.topic == topic])
        tables += history.selected_files(lake.where, _simplest(history, parts))
        if history.errors is not None:  # it may have rows of later offsets than the table
            tables += history.errors.selected_files(lake.where, parts)
    return ReadPlan(
        options,
        [each for each in tail if each.begin < each.end],
        ends_of(whole, starting, ending),
        epochs=epochs_after(states, {}),
        tables=tables,
        selected=next((_selected(each, lake.where).of_log for each in histories.values()), None),
    )


def _whole_queues(histories: Mapping[str, TopicHistory], states: Iterable[QueueState]) -> list[QueueState]:
    """Return the offsets of each queue in its table and its log together."""
    found = {each.queue: each for each in states}
    for history in histories.values():
        for queue, border in history.state.offsets.items():
            log = found.get(queue, QueueState(queue, border, border, NO_STORE))
            found[queue] = QueueState(queue, history.first(queue), max(border, log.max_offset), log.location)
    return list(found.values())


def _lost(
    span: Span, history: TopicHistory, logs: Mapping[MessageQueue, QueueState]
) -> Iterator[MissingRange]:
    """Yield the offsets of a span that are neither in the table nor in the log."""
    for gap in history.gaps(span.queue):
        begin, end = max(gap.begin, span.begin), min(gap.end, span.end)
        if begin < end and not _is_outside(history, span, gap):
            reason = "deleted from the log before it was written to the table"
            yield MissingRange(*span.queue, begin, end, reason)
    log = logs.get(span.queue)
    if log is None:
        return
    if log.max_offset < span.border:
        reason = (
            f"the log ends at {log.max_offset}, before the table, which has these offsets: the store of the"
            " broker was restored from a copy or lost its end, or the table is that of another cluster"
        )
        yield MissingRange(*span.queue, log.max_offset, span.border, reason)
    begin, end = max(span.begin, span.border), min(span.end, log.min_offset)
    if begin < end:
        reason = f"before the first offset of the log, {log.min_offset}, and not in the table yet"
        yield MissingRange(*span.queue, begin, end, reason)


def _is_outside(history: TopicHistory, span: Span, gap: LakeGap) -> bool:
    """Return True if a row after the gap is too old for the span, or a row before it is too new."""
    queue, found = (gap.broker, gap.queue), list[RowBounds]()
    if span.begin_ms is not None:
        found.append(RowBounds(*queue, gap.end, OFFSET_MAX, end_ms=span.begin_ms))
    if span.end_ms is not None:
        found.append(RowBounds(*queue, 0, gap.begin, begin_ms=span.end_ms))
    with lake_errors(f"the table {history.table.name}"):
        return any(history.scan(_rows_of(each), "offset", limit=1).to_arrow().num_rows for each in found)


def _parts(spans: Sequence[Span]) -> tuple[RowBounds, ...]:
    """Return the rows of a table that are in the spans of its queues."""
    return tuple(
        RowBounds(*each.queue[1:], each.begin, min(each.end, each.border), each.begin_ms, each.end_ms)
        for each in spans
        if each.begin < min(each.end, each.border)
    )


def _simplest(history: TopicHistory, parts: tuple[RowBounds, ...]) -> tuple[RowBounds, ...] | None:
    """Return the bounds of the same rows of this table, without its queues if all are read as a whole."""
    borders = ((queue, history.first(queue), end) for queue, end in history.state.offsets.items())
    whole = {(*queue[1:], begin, end) for queue, begin, end in borders if begin < end}
    times = {each[-2:] for each in parts}
    if {each[:-2] for each in parts} != whole or len(times) > 1:
        return parts
    limits = [RowBounds(begin_ms=begin_ms, end_ms=end_ms) for begin_ms, end_ms in times]
    return None if limits in ([], [RowBounds()]) else tuple(limits)


def _rows_of(bounds: RowBounds) -> BooleanExpression:
    """Return the expression of these rows for PyIceberg, which skips files by it."""
    tests = (_KINDS[sign](column, value) for column, sign, value in bounds.tests())
    return And(ALWAYS_TRUE, ALWAYS_TRUE, *tests)


@dataclass(frozen=True)
class Selected:
    """The option `where`, for the plan of a table, for the readers of its files, and for the log."""

    in_table: BooleanExpression = ALWAYS_TRUE
    of_files: pc.Expression | None = None
    of_log: SelectedRows | None = None


def _selected(history: TopicHistory, where: str) -> Selected:
    """Parse the option `where` for a table and for the log. Raises OptionInvalid."""
    if not where:
        return Selected()
    schema = history.table.iceberg.schema()
    fields = {each.name: each for each in schema.fields}
    named = Schema(
        *(
            NestedField(fields[column].field_id, name, fields[column].field_type)
            for name, column in TABLE_COLUMNS.items()
            if column in fields
        )
    )
    try:
        bound = bind(named, parse(where), True)
        of_log = expression_to_pyarrow(bound)
        columns = [named.find_column_name(each) or "" for each in extract_field_ids(bound)]
    except (ParseException, TypeError, ValueError, NotImplementedError) as error:
        raise OptionInvalid(
            f"where={where!r} is invalid: {str(error)[:ERROR_CHARACTERS]}. Give an expression on"
            f' {", ".join(named.column_names)}, such as "queueId = 3 AND storeTimestamp >='
            " '2026-01-31T00:00:00+00:00'\""
        ) from error
    in_table = translate_column_names(bound, schema, True)
    of_files = expression_to_pyarrow(bind(schema, in_table, True))
    return Selected(in_table, of_files, SelectedRows(of_log, columns))

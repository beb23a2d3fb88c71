"""Read messages from the Parquet files of a topic's table, where `jobs.lake` has copied them.

    file, sorted by broker, queue, offset     | row group 0 | row group 1 | row group 2 | …
    FilePart: some row groups of a file                     └────────────┬────────────┘
    TableSplit: the parts that one task reads, of any number of files and queues

The plan of a read (`jobs.lake.history`) names the files of one snapshot of the table. Therefore a task needs
only pyarrow, and neither the catalog nor PyIceberg.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import chain
from operator import attrgetter, or_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from jobs.job_errors import FetchFailed, LakeInvalid
from jobs.reading.chunk import MICROSECONDS, TIMESTAMPS
from jobs.reading.schema import BODY_ERROR
from jobs.reading.splits import NO_STORE, StoreLocation, join_small
from store.kernels.arrow import ALL_FIELDS
from store.message.message_queue import MessageQueue

TABLE_COLUMNS = {
    "brokerName": "broker",
    "queueId": "queue",
    "queueOffset": "offset",
    "commitLogOffset": "commit_log_offset",
    "storeTimestamp": "store_time",
    "bornTimestamp": "born_time",
    "tags": "tags",
    "keys": "keys",
    "reconsumeTimes": "reconsume_times",
    "properties": "properties",
    "body": "body",
}
"""The column of the table that has each column of a read. The others are computed from these."""
UNIQ_KEY = "UNIQ_KEY"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BATCH_ROWS = 64 * 1024
BATCH_BYTES = 16 * 1024 * 1024


class FilePart(NamedTuple):
    """Some row groups of one file, [begin, end), with about `rows` rows."""

    path: str
    begin: int
    end: int
    rows: int


class RowBounds(NamedTuple):
    """Some rows of a table: offsets [begin, end) of a queue, stored at times [begin_ms, end_ms).

    None means no limit; a `broker` that is None stands for all queues.
    """

    broker: str | None = None
    queue: int = 0
    begin: int = 0
    end: int = 0
    begin_ms: int | None = None
    end_ms: int | None = None

    def tests(self) -> list[tuple[str, str, Any]]:
        """Return the comparisons that are all true for these rows: column, operator and value."""
        found: list[tuple[str, str, Any]] = []
        if self.broker is not None:
            found += [("broker", "==", self.broker), ("queue", "==", self.queue)]
            found += [("offset", ">=", self.begin), ("offset", "<", self.end)]
        if self.begin_ms is not None:
            found.append(("store_time", ">=", EPOCH + timedelta(milliseconds=self.begin_ms)))
        if self.end_ms is not None:
            found.append(("store_time", "<", EPOCH + timedelta(milliseconds=self.end_ms)))
        return found


@dataclass(frozen=True)
class TableSource:
    """The files of the table of `topic`, in a file system, and the rows of these that a read returns.

    Attributes:
        topic: The topic.
        files: The file system.
        where: An expression on the columns of the table, or None.
        bounds: The rows are in one of these; None means all rows.
    """

    topic: str
    files: pafs.FileSystem
    where: pc.Expression | None = None
    bounds: tuple[RowBounds, ...] | None = None

    def _wanted(self) -> pc.Expression | None:
        if self.bounds is None:
            return self.where
        terms = [pq.filters_to_expression([each.tests()]) for each in self.bounds] or [pc.scalar(value=False)]
        while len(terms) > 1:  # a balanced tree, as there may be thousands of queues
            terms = [reduce(or_, terms[index : index + 2]) for index in range(0, len(terms), 2)]
        return terms[0] if self.where is None else terms[0] & self.where

    def batches(self, part: FilePart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a part of a file, in order, with the columns of a read.

        Raises `FetchFailed` if the file cannot be read, and `LakeInvalid` if it lacks a column.
        """
        try:
            groups = range(part.begin, part.end)
            fragment = ds.ParquetFileFormat().make_fragment(part.path, self.files, row_groups=groups)
            present = fragment.physical_schema.names
            needed = {TABLE_COLUMNS.get(name, "properties") for name in columns if name not in _CONSTANT}
            if missing := sorted(needed - set(present)):
                raise LakeInvalid(
                    f"the file {part.path} of the table of topic {self.topic} has no column"
                    f" {', '.join(missing)}, but {', '.join(present)}: choose other columns with columns=, or"
                    " rewrite the file if another tool has renamed its columns"
                )
            scanner = fragment.scanner(
                columns={name: self._value(name) for name in columns},
                filter=self._wanted(),
                batch_size=_batch_rows(fragment),
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
            )
            yield from (each for each in scanner.to_batches() if each.num_rows)
        except (OSError, pa.ArrowException) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise FetchFailed(
                f"{self.topic}: the file {part.path} of its table cannot be read: {reason}. If the snapshot"
                " of this read has expired meanwhile, start the read again"
            ) from error

    def _value(self, name: str) -> Any:
        kind = MICROSECONDS if name in TIMESTAMPS else ALL_FIELDS[name].type
        if name in _CONSTANT:
            return pc.scalar(pa.scalar(self.topic if name == "topic" else None, kind))
        if name == "uniqKey":
            return pc.map_lookup(pc.field("properties"), pa.scalar(UNIQ_KEY), "last").cast(kind)
        return pc.field(TABLE_COLUMNS[name]).cast(kind)


_CONSTANT = ("topic", BODY_ERROR)


@dataclass(frozen=True)
class TableSplit:
    """The parts of files that one task reads. A plan has one for each table, which is not cut yet."""

    source: TableSource
    parts: tuple[FilePart, ...]

    @property
    def location(self) -> StoreLocation:
        """No store: each node reads the file system of the table alike."""
        return NO_STORE

    @property
    def queue(self) -> MessageQueue:
        """The topic of the split, for errors and filters of rows: it has messages of several queues."""
        return MessageQueue(self.source.topic, "", -1)

    @property
    def message_count(self) -> int:
        """About the number of rows in the parts, of which the read may want fewer."""
        return sum(each.rows for each in self.parts)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of all parts, one after the other; raises as `TableSource.batches` does."""
        for part in self.parts:
            yield from self.source.batches(part, columns)


def cut_tables(
    tables: Iterable[TableSplit], min_partitions: int, max_rows: int | None = None
) -> list[TableSplit]:
    """Cut the splits into about equal ones, `min_partitions` in total if there are as many row groups.

    Small files are joined. No split has more than about `max_rows` rows, unless one row group has.
    """
    tables = list(tables)
    total = sum(each.message_count for each in tables)
    target = max(-(-total // max(min_partitions, 1)), 1)
    target = min(target, max_rows or target)
    return [
        replace(table, parts=joined)
        for table in tables
        for joined in join_small(
            chain.from_iterable(_cut_part(each, target) for each in table.parts), attrgetter("rows"), target
        )
    ]


def _cut_part(whole: FilePart, target: int) -> Iterator[FilePart]:
    groups = whole.end - whole.begin
    count = min(max(-(-whole.rows // target), 1), groups)
    for index in range(count):
        begin, end = (groups * number // count for number in (index, index + 1))
        rows = whole.rows * end // groups - whole.rows * begin // groups
        yield FilePart(whole.path, whole.begin + begin, whole.begin + end, rows)


def _batch_rows(fragment: ds.ParquetFileFragment) -> int:
    """Return the number of rows of a batch of about BATCH_BYTES: rows may be large."""
    sizes = [(each.total_byte_size, each.num_rows) for each in fragment.row_groups]
    row_bytes = max((size // max(rows, 1) for size, rows in sizes), default=1)
    return min(max(BATCH_BYTES // max(row_bytes, 1), 1), BATCH_ROWS)

"""WriteTask: copies splits of queues to Parquet files of a table. The one writer of all engines.

    splits ──► batches (Arrow, as `read_queue` has them) ──► columns of the table ──► a file for each day

A file has the rows of one day of store_time, in order of broker, queue and offset.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io

from cluster.client.config import MIB
from jobs.job_errors import MissingRange
from jobs.lake.bodies import REASON, LakeBodies
from jobs.lake.catalogs import lake_errors
from jobs.lake.lake_table import BODY, READ_COLUMNS, STORE_TIME
from jobs.reading.chunk import QUEUE_OFFSET
from jobs.reading.reader import SplitsReader
from jobs.reading.schema import BODY_ERROR
from jobs.reading.splits import Split
from store.message.message_queue import MessageQueue

FILE_BYTES = 128 * MIB
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 32 * MIB
OPEN_DAYS_MAX = 4
DAY_US = 86_400_000_000

_REPEATED = ("broker", "queue", "tags", "reconsume_times", "properties.key_value.key")


@dataclass(frozen=True)
class WrittenRows:
    """The result of a task.

    Attributes:
        files: The URIs of the Parquet files.
        rows: The number of rows in them.
        size_bytes: The size of the files.
        lost: The offsets whose messages were deleted or damaged before they were written.
        error_files: The URIs of the files with bodies that cannot be decoded.
        errors: The number of rows in them.
    """

    files: tuple[str, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    lost: tuple[MissingRange, ...] = ()
    error_files: tuple[str, ...] = ()
    errors: int = 0

    def __add__(self, other: WrittenRows) -> WrittenRows:
        return WrittenRows(
            self.files + other.files,
            self.rows + other.rows,
            self.size_bytes + other.size_bytes,
            self.lost + other.lost,
            self.error_files + other.error_files,
            self.errors + other.errors,
        )


@dataclass(frozen=True)
class ErrorsTarget:
    """How a task decodes bodies, and the table of those that cannot be decoded.

    Attributes:
        bodies: How bodies are decoded.
        schema: The Arrow schema of the files of that table.
        data_location: The URI below which they are written.
        begins: The first offset of each queue that is not in that table.
    """

    bodies: LakeBodies
    schema: pa.Schema
    data_location: str
    begins: Mapping[MessageQueue, int]


@dataclass(frozen=True)
class WriteTask:
    """Some splits that one worker writes. It can be pickled, and repeated: its files have new names.

    Attributes:
        splits: The splits, in order of broker, queue and offset.
        schema: The Arrow schema of the table's files.
        data_location: The URI below which the files are written.
        io_properties: The properties of the file system, which may be secret.
        map_files: Map the files of stores on the worker's machine.
        has_broker: The splits are also served by brokers; False for a store without one.
        file_bytes: The size at which a file is complete.
        errors: How bodies are decoded, and where those go that cannot be; None to keep bodies as they are.
    """

    splits: tuple[Split, ...]
    schema: pa.Schema
    data_location: str
    io_properties: Mapping[str, str] = field(repr=False)
    map_files: bool = True
    has_broker: bool = True
    file_bytes: int = FILE_BYTES
    errors: ErrorsTarget | None = None

    @property
    def node_ip(self) -> str:
        """The Ray node that has the files of the first split; empty if it is unknown."""
        return self.splits[0].location.node_ip

    def run(self) -> WrittenRows:
        """Write the rows, and return the files, which are complete and durable.

        Raises `FetchFailed`, and `LakeUnavailable` if a file cannot be written.
        """
        lost: list[MissingRange] = []
        io = load_file_io(dict(self.io_properties), self.data_location)
        files = DayFiles(io, self.data_location, self.schema, self.file_bytes)
        failed = None
        if self.errors:
            failed = DayFiles(io, self.errors.data_location, self.errors.schema, self.file_bytes)
        try:
            for split in self.splits:
                for batch in self._read(split, lost):
                    self._write(split, batch, files, failed)
            written = files.close()
            refused = failed.close() if failed else WrittenRows()
        except BaseException:
            files.discard()
            if failed:
                failed.discard()
            raise
        return replace(written, lost=tuple(lost), error_files=refused.files, errors=refused.rows)

    def _write(self, split: Split, batch: pa.RecordBatch, files: DayFiles, failed: DayFiles | None) -> None:
        if self.errors is None or failed is None:
            files.write(to_columns(batch, self.schema, {}))
            return
        decoder = self.errors.bodies.decoder()
        bodies, reasons = batch.column(BODY).to_pylist(), batch.column(BODY_ERROR).to_pylist()
        arrays, faults = decoder.typed_columns(bodies, reasons)
        typed = dict(zip(self.errors.bodies.fields.names, arrays, strict=True))
        rows = to_columns(batch, self.schema, {**typed, BODY: pa.nulls(len(batch), pa.binary())})
        if not faults:
            files.write(rows)
            return
        is_faulty = np.zeros(len(batch), np.bool_)
        is_faulty[list(faults)] = True
        files.write(rows.filter(pa.array(~is_faulty)))
        # A round whose second commit failed is repeated, when its errors are in their table already.
        is_new = batch.column(QUEUE_OFFSET).to_numpy() >= self.errors.begins.get(split.queue, 0)
        texts = pa.array([faults.get(row) for row in range(len(batch))], pa.string())
        failed.write(
            to_columns(batch, self.errors.schema, {REASON: texts}).filter(pa.array(is_faulty & is_new))
        )

    def _read(self, split: Split, lost: list[MissingRange]) -> Iterator[pa.RecordBatch]:
        columns = tuple(READ_COLUMNS.values()) + ((BODY_ERROR,) if self.errors else ())
        reader = SplitsReader([split], columns, fail_on_data_loss=False, map_files=self.map_files)
        yield from reader.read_all()
        if not reader.missing or not (self.map_files and self.has_broker):
            lost += reader.missing
            return
        # A file that this process cannot map is no loss: only the broker knows what is lost.
        for each in reader.missing:
            again = Split(split.queue, each.begin, each.end, split.location)
            served = SplitsReader([again], columns, fail_on_data_loss=False, map_files=False)
            yield from served.read_all()
            lost += served.missing


def to_columns(batch: pa.RecordBatch, schema: pa.Schema, given: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return a batch of messages with the columns of a table; those in `given` have these values."""
    arrays = []
    for each in schema:
        if each.name in given:
            arrays.append(given[each.name].cast(each.type))
        elif each.name in READ_COLUMNS:
            arrays.append(batch.column(READ_COLUMNS[each.name]))
        else:
            arrays.append(pa.nulls(len(batch), each.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class DayFiles:
    """The files that a task writes: of each day at most one is open."""

    def __init__(self, io: FileIO, location: str, schema: pa.Schema, file_bytes: int = FILE_BYTES) -> None:
        self._io = io
        self._location = location
        self._schema = schema
        self._file_bytes = file_bytes
        self._open: dict[int, _ParquetFile] = {}
        self._done: list[_ParquetFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows to the files of their days. Raises `LakeUnavailable`."""
        days = rows.column(STORE_TIME).cast(pa.int64()).to_numpy() // DAY_US
        borders = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for begin, end in pairwise(borders):
            if begin < end:
                self._write_day(int(days[begin]), rows.slice(begin, end - begin))

    def _write_day(self, day: int, rows: pa.RecordBatch) -> None:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= OPEN_DAYS_MAX:
                self._finish(next(iter(self._open)))
            file = _ParquetFile(
                self._io,
                f"{self._location}/{_folder(day)}/{uuid.uuid4()}.parquet",
                self._schema,
                min(ROW_GROUP_BYTES, self._file_bytes),
            )
        self._open[day] = file  # the file that was written last is the last one
        with lake_errors(f"the file {file.uri}"):
            file.write(rows)
        if file.size_bytes >= self._file_bytes:
            self._finish(day)

    def _finish(self, day: int) -> None:
        file = self._open.pop(day)
        self._done.append(file)
        with lake_errors(f"the file {file.uri}"):
            file.close()

    def close(self) -> WrittenRows:
        """Complete all files. Raises `LakeUnavailable`."""
        for day in list(self._open):
            self._finish(day)
        return WrittenRows(
            tuple(each.uri for each in self._done),
            sum(each.rows for each in self._done),
            sum(each.size_bytes for each in self._done),
        )

    def discard(self) -> None:
        """Delete all files, as far as this is possible; the rest becomes orphans."""
        for file in (*self._open.values(), *self._done):
            with suppress(Exception):
                file.close()
        delete_files(self._io, [each.uri for each in (*self._open.values(), *self._done)])


class _ParquetFile:
    """One file, whose rows are collected to row groups."""

    def __init__(self, io: FileIO, uri: str, schema: pa.Schema, group_bytes: int) -> None:
        self.uri = uri
        self.rows = self.size_bytes = 0
        self._schema = schema
        self._group_bytes = group_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        with lake_errors(f"the file {uri}"):
            self._stream: Any = io.new_output(uri).create()
        plain = [name for name in schema.names if name != BODY]
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="zstd",
            use_dictionary=[*_REPEATED, *(name for name in plain if name not in READ_COLUMNS)],
            # no encodings such as DELTA_BINARY_PACKED, which Iceberg's reader for Spark refuses
            write_statistics=plain,
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= self._group_bytes:
            self._write_group()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self.rows += self._held_rows
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        self.size_bytes = self._stream.tell()

    def close(self) -> None:
        if self._held:
            self._write_group()
        self._writer.close()
        if not self._stream.closed:
            self.size_bytes = self._stream.tell()
        self._stream.close()


def delete_files(io: FileIO, uris: Sequence[str]) -> None:
    """Delete files that no snapshot has; what cannot be deleted becomes an orphan."""
    for uri in uris:
        with suppress(Exception):
            io.delete(uri)


def _folder(day: int) -> str:
    return f"{STORE_TIME}_day={datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day):%Y-%m-%d}"

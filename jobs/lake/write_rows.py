"""WriteTask: copies splits of queues to Parquet files of a table. The one writer of all engines.

    splits ──► batches (Arrow, as `read_queue` has them) ──► columns of the table ──► a file for each day

A file has the rows of one day of store_time, in order of broker, queue and offset.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io

from cluster.client.config import MIB
from jobs.job_errors import MissingRange
from jobs.lake.bodies import REASON, LakeBodies
from jobs.lake.catalogs import lake_errors
from jobs.lake.lake_table import BODY, READ_COLUMNS, STORE_TIME, LakeTable
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
    """The URIs of the files of a task, with their rows; and of those with bodies that cannot be decoded.

    `lost` are the offsets whose messages were deleted or damaged before they were written.
    """

    files: tuple[str, ...] = ()
    rows: int = 0
    lost: tuple[MissingRange, ...] = ()
    error_files: tuple[str, ...] = ()
    errors: int = 0

    def __add__(self, other: WrittenRows) -> WrittenRows:
        return WrittenRows(
            self.files + other.files,
            self.rows + other.rows,
            self.lost + other.lost,
            self.error_files + other.error_files,
            self.errors + other.errors,
        )


@dataclass(frozen=True)
class FilesOf:
    """Where and how files of a table are written: below a URI, each up to a size.

    The properties of the file system may be secret.
    """

    schema: pa.Schema
    location: str
    io_properties: Mapping[str, str] = field(repr=False)
    file_bytes: int = FILE_BYTES

    @classmethod
    def table(cls, table: LakeTable, file_bytes: int = FILE_BYTES) -> FilesOf:
        """Return where the files of a table are."""
        return cls(table.arrow_schema, f"{table.location}/data", table.io.properties, file_bytes)


@dataclass(frozen=True)
class Decoding:
    """How a task decodes bodies, and the table of those that cannot be decoded.

    `begins` are the first offsets of queues that are not in that table.
    """

    bodies: LakeBodies
    failed: FilesOf
    begins: Mapping[MessageQueue, int]

    def divide(
        self, queue: MessageQueue, batch: pa.RecordBatch, schema: pa.Schema
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows with decoded bodies, in `schema`, and those for the table of the others."""
        bodies, reasons = batch.column(BODY).to_pylist(), batch.column(BODY_ERROR).to_pylist()
        arrays, faults = self.bodies.decoder().typed_columns(bodies, reasons)
        typed = dict(zip(self.bodies.fields.names, arrays, strict=True))
        is_faulty = np.isin(np.arange(len(batch)), list(faults))
        rows = to_columns(batch, schema, {**typed, BODY: pa.nulls(len(batch), pa.binary())})
        texts = pa.array([faults.get(row) for row in range(len(batch))], pa.string())
        failed = to_columns(batch, self.failed.schema, {REASON: texts})
        # A round whose second commit failed is repeated, when its errors are in their table already.
        is_new = batch.column(QUEUE_OFFSET).to_numpy() >= self.begins.get(queue, 0)
        return rows.filter(pa.array(~is_faulty)), failed.filter(pa.array(is_faulty & is_new))


@dataclass(frozen=True)
class WriteTask:
    """Some splits that one worker writes. It can be pickled, and repeated: its files have new names.

    Attributes:
        splits: The splits, in order of broker, queue and offset.
        target: The table.
        has_broker: The splits are also served by brokers; False for a store without one.
        decoding: How bodies are decoded; None to keep them as they are.
    """

    splits: tuple[Split, ...]
    target: FilesOf
    has_broker: bool = True
    decoding: Decoding | None = None

    @property
    def node_ip(self) -> str:
        """The Ray node that has the files of the first split; empty if it is unknown."""
        return self.splits[0].location.node_ip

    def run(self) -> WrittenRows:
        """Write the rows, and return the files, which are complete and durable.

        Raises `FetchFailed`, and `LakeUnavailable` if a file cannot be written.
        """
        lost: list[MissingRange] = []
        of_failed = self.decoding.failed if self.decoding else self.target
        with DayFiles(self.target) as files, DayFiles(of_failed) as failed:
            for split in self.splits:
                for batch in self._read(split, lost):
                    if self.decoding is None:
                        files.write(to_columns(batch, self.target.schema, {}))
                        continue
                    rows, failed_rows = self.decoding.divide(split.queue, batch, self.target.schema)
                    files.write(rows)
                    failed.write(failed_rows)
            written, refused = files.close(), failed.close()
        return replace(written, lost=tuple(lost), error_files=refused.files, errors=refused.rows)

    def _read(self, split: Split, lost: list[MissingRange]) -> Iterator[pa.RecordBatch]:
        columns = tuple(READ_COLUMNS.values()) + ((BODY_ERROR,) if self.decoding else ())
        reader = SplitsReader([split], columns, fail_on_data_loss=False, map_files=True)
        yield from reader.read_all()
        if not self.has_broker:
            lost += reader.missing
            return
        # A file that this process cannot map is no loss: only the broker knows what is lost.
        unmapped = [Split(split.queue, each.begin, each.end, split.location) for each in reader.missing]
        served = SplitsReader(unmapped, columns, fail_on_data_loss=False, map_files=False)
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

    def __init__(self, target: FilesOf) -> None:
        self._io = load_file_io(dict(target.io_properties), target.location)
        self._target = target
        self._open: dict[int, _ParquetFile] = {}
        self._done: list[_ParquetFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete all files after an error, as far as this is possible; the rest becomes orphans."""
        if kind is not None:
            files = [*self._open.values(), *self._done]
            for file in files:
                with suppress(Exception):
                    file.close()
            delete_files(self._io, [each.uri for each in files])

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
            folder = f"{STORE_TIME}_day={np.datetime64(day, 'D')}"
            file = _ParquetFile(
                self._io,
                f"{self._target.location}/{folder}/{uuid.uuid4()}.parquet",
                self._target.schema,
                min(ROW_GROUP_BYTES, self._target.file_bytes),
            )
        self._open[day] = file  # the file that was written last is the last one
        with lake_errors(f"the file {file.uri}"):
            file.write(rows)
        if file.size_bytes >= self._target.file_bytes:
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
        return WrittenRows(tuple(each.uri for each in self._done), sum(each.rows for each in self._done))


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
        self._stream.close()


def delete_files(io: FileIO, uris: Sequence[str]) -> None:
    """Delete files that no snapshot has; what cannot be deleted becomes an orphan."""
    for uri in uris:
        with suppress(Exception):
            io.delete(uri)

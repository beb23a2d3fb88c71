"""PartitionWriter: sends the rows of one partition to a topic, and returns their queue offsets.

One thread sends a buffer of rows while the caller's thread fills the next buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cluster.client import ClientError, Producer
from cluster.client.results import TableReceipt
from jobs.job_errors import WriteFailed
from jobs.reading.write_manifest import WrittenRange, merge_ranges
from jobs.writing.delayed_rows import DelayedRows, delays_of
from jobs.writing.write_job import DELAYED, WriteColumns, WriteJob
from store.message.message_queue import MessageQueue

WRITER_GROUP = "RAYMQ_BULK_WRITER"
PROPERTY_MAP = pa.map_(pa.string(), pa.string())
_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class PartitionReceipt(msgspec.Struct, frozen=True):
    """The queue offsets of the rows of one partition, stored by one successful attempt."""

    partition: int
    attempt: int
    rows: int
    ranges: list[WrittenRange]


@dataclass(frozen=True)
class _Sending:
    """A buffer that is being sent: rows [begin, end) of the partition."""

    begin: int
    end: int
    result: Future[TableReceipt]


class PartitionWriter:
    """Writes one partition of a job."""

    def __init__(
        self, job: WriteJob, partition: int, attempt: int = 0, queue: MessageQueue | None = None
    ) -> None:
        """Create the writer.

        Args:
            job: The job.
            partition: Index of the partition.
            attempt: Attempt number of the Spark or Ray task.
            queue: Queue to which all rows are sent; by default they are distributed.
        """
        self._job = job
        self._partition = partition
        self._attempt = attempt
        self._queue = queue
        self._uniq_keys = job.uniq_keys(partition)
        self._delayed = DelayedRows(job, partition + DELAYED)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> PartitionReceipt:
        """Send all rows, wait until they are acknowledged, and return their offsets.

        The offsets of delayed rows are not known, because they are not in their queues yet.

        Raises `WriteFailed` if rows cannot be sent. Rows that were sent before the error remain in the topic
        but are not committed.
        """
        ranges: list[WrittenRange] = []
        rows = 0
        with Producer(self._job.nameservers, WRITER_GROUP) as producer, ThreadPoolExecutor(1) as sender:
            sending: _Sending | None = None
            for table in self._buffers(batches):
                ranges += self._stored(sending)
                begin, rows = rows, rows + table.num_rows
                sending = _Sending(begin, rows, sender.submit(self._send, producer, table))
            ranges += self._stored(sending)
        return PartitionReceipt(self._partition, self._attempt, rows, merge_ranges(ranges))

    def _buffers(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows in tables of about `buffer_bytes`, with only the columns that the job writes."""
        held: list[pa.Table] = []
        held_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            held.append(select_columns(table, self._job.columns))
            held_bytes += held[-1].nbytes
            if held_bytes >= self._job.buffer_bytes:
                yield join_blocks(held)
                held, held_bytes = [], 0
        if held:
            yield join_blocks(held)

    def _send(self, producer: Producer, table: pa.Table) -> TableReceipt:
        columns = self._job.columns
        if columns.delay:
            delays = delays_of(table, columns.delay)
            is_delayed = pc.greater(delays, 0)
            self._delayed.send(producer, table.filter(is_delayed), delays.filter(is_delayed))
            table = table.filter(pc.invert(is_delayed))
        return producer.send_table(
            self._job.topic,
            table,
            body=columns.body,
            tags=columns.tag,
            keys=columns.key,
            sharding_key=columns.sharding_key,
            queue=self._queue,
            properties=columns.properties,
            uniq_keys=self._uniq_keys,
        )

    def _stored(self, sending: _Sending | None) -> list[WrittenRange]:
        if sending is None:
            return []
        with self._named_errors(sending):
            receipt = sending.result.result()
        return [
            WrittenRange(queue.broker_name, queue.queue_id, begin, end)
            for queue, begin, end in receipt.queues.runs()
        ]

    @contextmanager
    def _named_errors(self, sending: _Sending) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise WriteFailed(
                f"topic {self._job.topic}: rows [{sending.begin}, {sending.end}) of partition"
                f" {self._partition}, attempt {self._attempt}, were not written: {error}. The job is not"
                " committed: fix the cause and write again. Reads with committed=True skip the rows that this"
                " job has stored"
            ) from error


def select_columns(table: pa.Table, columns: WriteColumns) -> pa.Table:
    """Return the columns of `table` that a job writes, with types that can be sent, and properties as maps.

    Ray Data and pandas make structs or lists of pairs of dicts, and null-typed columns if all values are
    None. Raises `WriteFailed` if a column is missing, not unique, or has properties that are not strings.
    """
    names = list(dict.fromkeys(columns.named().values()))
    for name in names:
        if (count := table.column_names.count(name)) != 1:
            present = ", ".join(table.column_names)
            fault = f"several columns {name!r}" if count else f"no column {name!r}"
            raise WriteFailed(f"a block of the data has {fault}: its columns are {present}")
    selected = table.select(names)
    for index, name in enumerate(names):
        kind = selected.schema.field(index).type
        is_empty = pa.types.is_null(kind)
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        plain = _PLAIN.get(plain, plain)
        if is_empty and name == columns.delay:
            plain = pa.int64()
        elif is_empty and name == columns.properties:
            plain = PROPERTY_MAP
        if plain != kind:
            selected = selected.set_column(index, name, selected.column(index).cast(plain))
        elif name == columns.properties and (pa.types.is_struct(kind) or pa.types.is_list(kind)):
            selected = selected.set_column(index, name, _as_maps(name, selected.column(index)))
    return selected


def join_blocks(blocks: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all blocks as one table. Raises `WriteFailed` if types of a column do not agree."""
    try:
        return pa.concat_tables(blocks, promote_options="permissive")
    except pa.ArrowException as error:
        raise WriteFailed(f"the blocks of a task have a column with different types: {error}") from error


def _as_maps(name: str, column: pa.ChunkedArray) -> pa.Array:
    try:
        return pa.array([None if row is None else _pairs(row) for row in column.to_pylist()], PROPERTY_MAP)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise WriteFailed(
            f"column {name!r} has type {column.type}: properties must be maps from string to string ({error})"
        ) from error


def _pairs(row: Mapping[str, Any] | Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of a struct, or of a list of pairs or of structs with `key` and `value`."""
    if isinstance(row, Mapping):
        return [(name, value) for name, value in row.items() if value is not None]  # null: not in this row
    return [(each["key"], each["value"]) if isinstance(each, Mapping) else tuple(each) for each in row]

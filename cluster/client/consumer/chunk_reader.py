"""ChunkReader: decodes a chunk of fetched records step by step, into messages or Arrow rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from cluster.client.consumer.fetcher import Chunk
from cluster.client.errors import DataDamaged
from cluster.client.transport.compiled import CompiledLater
from store.common.logs import get_logger
from store.message import fetched
from store.message.buffers import Buffer
from store.message.compression import MAX_PLAIN_BYTES
from store.message.message import MessageExt
from store.message.record import QUEUE_OFFSET, TOTAL_SIZE
from store.message.sys_flag import is_compressed
from store.store_errors import RecordDamaged

if TYPE_CHECKING:
    import pyarrow as pa

_log = get_logger(__name__)

OFFSET_COLUMN = "queueOffset"
TAGS_COLUMN = "tags"

_Decode: TypeAlias = Callable[[Buffer, int, int, str], tuple[list[MessageExt], int]]


def _compiled_decoder() -> _Decode:
    from store.kernels.records_to_messages import decode_message_records

    return decode_message_records


_decode_messages: CompiledLater[[Buffer, int, int, str], tuple[list[MessageExt], int]] = CompiledLater(
    fetched.decode_messages, _compiled_decoder
)


class ChunkReader:
    """A chunk of records and the read position in it.

    Only messages with one of `wanted_tags` are returned (None: all messages). `taken` is the number of
    messages returned so far, `inflated_bytes` the sum of those bodies that were compressed.
    """

    def __init__(self, chunk: Chunk, wanted_tags: frozenset[str] | None) -> None:
        self.chunk = chunk
        self.next_offset = chunk.begin_offset if len(chunk.records) else chunk.next_offset
        self._wanted_tags = wanted_tags
        self.taken = self.inflated_bytes = 0
        self._position = 0
        self._rows: pa.RecordBatch | None = None
        self._rows_end = 0
        self._has_logged = False

    @property
    def position(self) -> int:
        """Return the number of bytes of the chunk that have been read."""
        return self._position

    @property
    def is_exhausted(self) -> bool:
        """Return True if all records of the chunk have been read."""
        return self._position >= len(self.chunk.records)

    def take_messages(self, count: int) -> list[MessageExt]:
        """Return the next messages, at most `count`, with decompressed bodies. Raises DataDamaged.

        Returns fewer once their compressed bodies have MAX_PLAIN_BYTES: a chunk is small only as stored.
        """
        self._skip_rows_taken()
        records, wanted, queue = self.chunk.records, self._wanted_tags, self.chunk.queue
        messages: list[MessageExt] = []
        inflated_until = self.inflated_bytes + MAX_PLAIN_BYTES
        try:
            while (
                len(messages) < count
                and self._position < len(records)
                and self.inflated_bytes < inflated_until
            ):
                run, position = _decode_messages(
                    records, self._position, count - len(messages), queue.broker_name
                )
                _decode_messages.count(len(run))
                last = run[-1]
                if is_compressed(last.sys_flag):  # only the last message of a run can be
                    self.inflated_bytes += len(last.body)
                    self._log_undecodable(last)
                self.next_offset = last.queue_offset + 1
                self._move_to(position)
                messages += run if wanted is None else [each for each in run if each.tags in wanted]
        except RecordDamaged as error:
            if not messages:
                raise self._damaged(error) from error
            # Return the messages before the damaged record first; the next call raises the error.
        self.taken += len(messages)
        return messages

    def take_rows(self, count: int, columns: list[str] | None) -> pa.RecordBatch:
        """Return the next messages, at most `count`, as rows of RECORD_SCHEMA or of `columns` of it.

        With `wanted_tags` the result may have fewer rows or no row, although more rows follow. Raises
        DataDamaged.
        """
        rows = self._rows
        if rows is None:
            rows = self._convert(columns)
        taken, self._rows = rows.slice(0, count), rows.slice(count)
        if self._rows.num_rows:
            self.next_offset = self._rows.column(OFFSET_COLUMN)[0].as_py()
            return self._select(taken, columns)
        self._rows = None
        self._move_to(self._rows_end)
        if not self.is_exhausted:
            self.next_offset = _queue_offset(self.chunk.records, self._position)
        return self._select(taken, columns)

    def _convert(self, columns: list[str] | None) -> pa.RecordBatch:
        from store.kernels.arrow import BodiesTooLarge, records_to_arrow

        names = None if columns is None else list(dict.fromkeys([*columns, OFFSET_COLUMN, TAGS_COLUMN]))
        records, broker_name = memoryview(self.chunk.records), self.chunk.queue.broker_name
        self._rows_end = len(records)
        try:
            try:
                rows = records_to_arrow(records[self._position :], broker_name, names)
            except BodiesTooLarge as error:
                self._rows_end = self._after(error.rows)
                rows = records_to_arrow(records[self._position : self._rows_end], broker_name, names)
        except RecordDamaged as error:
            raise self._damaged(error) from error
        if self._wanted_tags is not None:
            import pyarrow.compute

            wanted = pyarrow.compute.is_in(
                rows.column(TAGS_COLUMN), value_set=pyarrow.array(sorted(self._wanted_tags))
            )
            rows = rows.filter(wanted)
        return rows

    def _after(self, count: int) -> int:
        """Return the byte position after the next `count` records."""
        position, records = self._position, self.chunk.records
        for _ in range(count):
            position += int.from_bytes(records[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
        return position

    def _log_undecodable(self, message: MessageExt) -> None:
        if (
            message.body_error and not self._has_logged
        ):  # once per chunk: a sender may send any number of them
            self._has_logged = True
            _log.warning(
                "body_undecodable",
                queue=str(self.chunk.queue),
                offset=message.queue_offset,
                msg_id=message.msg_id,
                error=message.body_error,
            )

    @staticmethod
    def _select(rows: pa.RecordBatch, columns: list[str] | None) -> pa.RecordBatch:
        return rows if columns is None else rows.select(columns)

    def _skip_rows_taken(self) -> None:
        # If rows were taken from this chunk before, continue after the last row.
        if self._rows is None:
            return
        self._rows = None
        records, position, end = self.chunk.records, self._position, len(self.chunk.records)
        while position < end and _queue_offset(records, position) < self.next_offset:
            position += int.from_bytes(records[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
        self._move_to(position)

    def _move_to(self, position: int) -> None:
        self._position = position
        if self.is_exhausted:
            self.next_offset = self.chunk.next_offset

    def _damaged(self, error: Exception) -> DataDamaged:
        return DataDamaged(
            f"damaged record in {self.chunk.queue} at or after offset {self.next_offset}: {error}"
        )


def _queue_offset(records: Buffer, position: int) -> int:
    return int.from_bytes(records[position + QUEUE_OFFSET : position + QUEUE_OFFSET + 8], "big")

"""Taking messages out of a chunk of records, as objects or as Arrow rows, in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from cluster.client.consumer.fetcher import Chunk
from cluster.client.errors import DataDamaged
from cluster.client.transport.compiled import CompiledLater
from store.message import fetched
from store.message.buffers import Buffer
from store.message.message import MessageExt
from store.message.record import QUEUE_OFFSET, TOTAL_SIZE
from store.store_errors import MessageInvalid, RecordDamaged

if TYPE_CHECKING:
    import pyarrow as pa


OFFSET_COLUMN = "queueOffset"
TAGS_COLUMN = "tags"

_Decode: TypeAlias = Callable[[Buffer, int, int, str], tuple[list[MessageExt], int]]


def _compiled_decoder() -> _Decode:
    from store.kernels.records_to_messages import decode_messages

    return decode_messages


_decode_messages: CompiledLater[[Buffer, int, int, str], tuple[list[MessageExt], int]] = CompiledLater(
    fetched.decode_messages, _compiled_decoder
)


class ChunkReader:
    """A chunk and how far it has been read. `wanted_tags` None: all messages; `taken` counts the wanted."""

    def __init__(self, chunk: Chunk, wanted_tags: frozenset[str] | None) -> None:
        self.chunk = chunk
        self.next_offset = chunk.begin_offset if len(chunk.records) else chunk.next_offset
        self._wanted_tags = wanted_tags
        self.taken = 0
        self._position = 0
        self._rows: pa.RecordBatch | None = None

    @property
    def position(self) -> int:
        """How many bytes of the chunk have been read."""
        return self._position

    @property
    def is_exhausted(self) -> bool:
        """Whether everything has been taken."""
        return self._position >= len(self.chunk.records)

    def take_messages(self, count: int) -> list[MessageExt]:
        """The next messages, at most `count`, bodies as their producer gave them. Raises DataDamaged."""
        self._skip_rows_taken()
        records, wanted, queue = self.chunk.records, self._wanted_tags, self.chunk.queue
        messages: list[MessageExt] = []
        try:
            while len(messages) < count and self._position < len(records):
                run, position = _decode_messages(
                    records, self._position, count - len(messages), queue.broker_name
                )
                _decode_messages.count(len(run))
                self.next_offset = run[-1].queue_offset + 1
                self._moved_to(position)
                messages += run if wanted is None else [each for each in run if each.tags in wanted]
        except (RecordDamaged, MessageInvalid) as error:
            if not messages:
                raise self._damaged(error) from error
            # What came before it is handed out first; the next call meets it again.
        self.taken += len(messages)
        return messages

    def take_rows(self, count: int, columns: list[str] | None) -> pa.RecordBatch:
        """The next messages as rows of RECORD_SCHEMA (or those `columns` of it), at most `count`. Raises
        DataDamaged.

        With tags to filter by there may be fewer, even none, though more follow.
        """
        rows = self._rows
        if rows is None:
            rows = self._convert(columns)
        taken, self._rows = rows.slice(0, count), rows.slice(count)
        if self._rows.num_rows:
            self.next_offset = self._rows.column(OFFSET_COLUMN)[0].as_py()
            return self._shown(taken, columns)
        self._rows = None
        self._moved_to(len(self.chunk.records))
        return self._shown(taken, columns)

    def _convert(self, columns: list[str] | None) -> pa.RecordBatch:
        from store.reading.columns import records_to_arrow

        asked = None if columns is None else list(dict.fromkeys([*columns, OFFSET_COLUMN, TAGS_COLUMN]))
        records = memoryview(self.chunk.records)[self._position :]
        try:
            rows = records_to_arrow(records, self.chunk.queue.broker_name, asked)
        except RecordDamaged as error:
            raise self._damaged(error) from error
        if self._wanted_tags is not None:
            import pyarrow.compute

            wanted = pyarrow.compute.is_in(
                rows.column(TAGS_COLUMN), value_set=pyarrow.array(sorted(self._wanted_tags))
            )
            rows = rows.filter(wanted)
        return rows

    @staticmethod
    def _shown(rows: pa.RecordBatch, columns: list[str] | None) -> pa.RecordBatch:
        return rows if columns is None else rows.select(columns)

    def _skip_rows_taken(self) -> None:
        # After rows were taken, messages go on where the rows ended.
        if self._rows is None:
            return
        self._rows = None
        records, position, end = self.chunk.records, self._position, len(self.chunk.records)
        while position < end and _queue_offset(records, position) < self.next_offset:
            position += int.from_bytes(records[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
        self._moved_to(position)

    def _moved_to(self, position: int) -> None:
        self._position = position
        if self.is_exhausted:
            self.next_offset = self.chunk.next_offset

    def _damaged(self, error: Exception) -> DataDamaged:
        return DataDamaged(f"{self.chunk.queue} at about offset {self.next_offset}: {error}")


def _queue_offset(records: Buffer, position: int) -> int:
    return int.from_bytes(records[position + QUEUE_OFFSET : position + QUEUE_OFFSET + 8], "big")

"""TableColumns: the columns of a table as the encoder needs them.

Imports pyarrow and kernels: import it when a table is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cluster.client.errors import ConfigInvalid
from store.kernels.columns_to_records import RowBatch, TextColumn, queues_of_keys
from store.message.message_id import UniqKeyGenerator
from store.message.record import RecordDraft
from store.reading.columns import text_column

BODY, KEYS, TAGS, SHARD = "body", "keys", "tags", "shard"

# The size of a record besides body, keys and tags; an estimate, for the number of rows of a slice.
ROW_OVERHEAD_BYTES = 170


@dataclass(frozen=True, slots=True)
class TableColumns:
    """A table of the columns body and, where given, keys, tags and shard; all of bytes, text or whole
    numbers.
    """

    table: pa.Table

    @property
    def rows(self) -> int:
        """Return the number of messages."""
        return int(self.table.num_rows)

    @property
    def is_keyed(self) -> bool:
        """Return True if a column says which rows go to one queue."""
        return SHARD in self.table.column_names

    def slices(self, slice_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in slices whose records take about `slice_bytes`."""
        row_bytes = ROW_OVERHEAD_BYTES + self.table.nbytes // max(self.rows, 1)
        yield from self.table.to_batches(max_chunksize=max(1, slice_bytes // row_bytes))


def columns_of_table(
    table: pa.Table | pa.RecordBatch, body: str, tags: str | None, keys: str | None, sharding_key: str | None
) -> TableColumns:
    """Return the named columns of `table`. Raises ConfigInvalid for a missing one and for a wrong type."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    wanted = {BODY: body, TAGS: tags, KEYS: keys, SHARD: sharding_key}
    columns = {name: _column(table, given) for name, given in wanted.items() if given is not None}
    return TableColumns(pa.table(columns))


def columns_of_sequences(
    bodies: Sequence[bytes],
    tags: Sequence[str | None] | str | None,
    keys: Sequence[str | None] | None,
    sharding_keys: Sequence[str] | None,
) -> TableColumns:
    """Return the same from sequences of equal length; one `tags` text is for all. Raises ConfigInvalid."""
    columns = {BODY: _array("bodies", bodies, pa.binary())}
    if isinstance(tags, str):
        columns[TAGS] = pa.repeat(tags, len(bodies))
    elif tags is not None:
        columns[TAGS] = _array("tags", tags, pa.string())
    if keys is not None:
        columns[KEYS] = _array("keys", keys, pa.string())
    if sharding_keys is not None:
        columns[SHARD] = _array("sharding_keys", sharding_keys, pa.string())
    for name, column in columns.items():
        if len(column) != len(bodies):
            raise ConfigInvalid(f"{len(bodies)} bodies, but {len(column)} {name}: give one for each")
    return TableColumns(pa.table(columns))


def _array(name: str, values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, str | bytes | bytearray | memoryview) or not hasattr(values, "__len__"):
        raise ConfigInvalid(f"{name} is {type(values).__name__}: give a list, one element a message")
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError) as error:
        raise ConfigInvalid(f"{name} cannot be read as a column of {kind}: {error}") from error


def _column(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        raise ConfigInvalid(f"the table has no column {name!r}; it has {', '.join(table.column_names)}")
    column = table.column(name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(is_kind(kind) for is_kind in _TEXTS):
        raise ConfigInvalid(f"column {name!r} is of {kind}: give bytes, text or whole numbers (or cast it)")
    return column.cast(kind) if kind is not column.type else column


_TEXTS = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_null,  # a column without a single value
)


def rows_of_slice(
    rows: pa.RecordBatch,
    draft: RecordDraft,
    queue_ids: NDArray[np.int32],
    turn: int,
    uniq_keys: UniqKeyGenerator,
    max_body_bytes: int,
) -> RowBatch:
    """Return the rows for the encoder, each with its queue's number; without a shard column all go to queue
    `turn` modulo the count. `queue_ids` are the queues' ids on their brokers.
    """
    count = rows.num_rows
    if SHARD in rows.schema.names:
        queues = queues_of_keys(_text(rows, SHARD), len(queue_ids))
    else:
        queues = np.full(count, turn % len(queue_ids), np.int32)
    return RowBatch(
        draft,
        _text(rows, BODY),
        _text(rows, KEYS),
        _text(rows, TAGS),
        queues,
        queue_ids,
        uniq_keys.next_block(count),
        max_body_bytes,
    )


def _text(rows: pa.RecordBatch, name: str) -> TextColumn:
    return text_column(rows.column(name)) if name in rows.schema.names else TextColumn.absent(rows.num_rows)

"""TableColumns: the columns of a table under the names that the encoder needs.

This module imports pyarrow and kernels. Import it only when a table is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cluster.client.errors import ConfigInvalid
from store.kernels.arrow import text_column
from store.kernels.columns_to_records import RowBatch, TextColumn, queues_of_keys
from store.message.buffers import owned_bytes
from store.message.message_id import UniqKeySource
from store.message.record import RecordDraft

BODY, KEYS, TAGS, SHARD, PROPERTIES = "body", "keys", "tags", "shard", "properties"

# Estimated size of a record without body, keys and tags; it determines the number of rows of a slice.
ROW_OVERHEAD_BYTES = 170


@dataclass(frozen=True, slots=True)
class TableColumns:
    """A table with the column `body` and optional columns.

    These are `keys`, `tags`, `shard` (the sharding key) and `properties` (encoded ones). The columns contain
    bytes, strings or integers. `uniq_keys` is the source of the UNIQ_KEYs; None means
    that of the producer.
    """

    table: pa.Table
    uniq_keys: UniqKeySource | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows; each is one message."""
        return int(self.table.num_rows)

    @property
    def is_keyed(self) -> bool:
        """Return True if the table has a column of sharding keys."""
        return SHARD in self.table.column_names

    def slices(self, slice_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in slices whose encoded records have about `slice_bytes`."""
        row_bytes = ROW_OVERHEAD_BYTES + self.table.nbytes // max(self.rows, 1)
        yield from self.table.to_batches(max_chunksize=max(1, slice_bytes // row_bytes))


def columns_of_table(
    table: pa.Table | pa.RecordBatch,
    body: str,
    tags: str | None,
    keys: str | None,
    sharding_key: str | None,
    properties: str | None = None,
    uniq_keys: UniqKeySource | None = None,
) -> TableColumns:
    """Return the columns of `table` that the other arguments name; None means no such column.

    `table` may also be an object that pyarrow converts, such as a pandas or polars frame.

    Raises ConfigInvalid if a column is missing or not unique, or its type cannot be sent.
    """
    if not isinstance(table, pa.Table):
        try:
            table = pa.table(table)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ConfigInvalid(
                f"table is a {type(table).__name__}: give a pyarrow.Table ({error})"
            ) from error
    wanted = {BODY: body, TAGS: tags, KEYS: keys, SHARD: sharding_key}
    columns = {name: _column(table, given) for name, given in wanted.items() if given is not None}
    if properties is not None:
        from cluster.client.producer.table_properties import encode_property_column

        columns[PROPERTIES] = encode_property_column(properties, _existing(table, properties))
    return TableColumns(pa.table(columns), uniq_keys)


def columns_of_sequences(
    bodies: Sequence[bytes],
    tags: Sequence[str | None] | str | None,
    keys: Sequence[str | None] | None,
    sharding_keys: Sequence[str] | None,
) -> TableColumns:
    """Return the columns of messages given as sequences of equal length.

    A single string as `tags` is used for all messages. Raises ConfigInvalid if the lengths differ or a value
    has the wrong type.
    """
    columns = {BODY: _array("bodies", _owned(bodies), pa.binary())}
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
            raise ConfigInvalid(f"{len(bodies)} bodies but {len(column)} {name}: give one for each body")
    return TableColumns(pa.table(columns))


def _owned(bodies: Any) -> Any:
    """Return `bodies` with each element that is a buffer, but not bytes, replaced by its bytes.

    pyarrow would refuse numpy arrays, and read views that are not contiguous in another order.
    """
    if not isinstance(bodies, list | tuple) or set(map(type, bodies)) <= {bytes, str, NoneType}:
        return bodies
    try:
        return [each if isinstance(each, bytes | str | NoneType) else owned_bytes(each) for each in bodies]
    except TypeError as error:
        raise ConfigInvalid(f"bodies cannot be read as a column of binary: {error}") from error


def _array(name: str, values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, str | bytes | bytearray | memoryview) or not hasattr(values, "__len__"):
        raise ConfigInvalid(
            f"{name} is a {type(values).__name__}: give a list with one element for each message"
        )
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError) as error:
        raise ConfigInvalid(f"{name} cannot be read as a column of {kind}: {error}") from error


def _existing(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        raise ConfigInvalid(f"the table has no column {name!r}; it has {', '.join(table.column_names)}")
    if table.column_names.count(name) > 1:
        raise ConfigInvalid(f"the table has several columns {name!r}: rename or drop all but one")
    return table.column(name)


def _column(table: pa.Table, name: str) -> Any:
    column = _existing(table, name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    kind = _PLAIN.get(kind, kind)
    if not any(is_kind(kind) for is_kind in _TEXTS):
        raise ConfigInvalid(f"column {name!r} has type {kind}: cast it to bytes, strings or integers")
    try:
        return column.cast(kind) if kind is not column.type else column
    except pa.ArrowException as error:
        raise ConfigInvalid(f"column {name!r} of type {column.type} cannot be sent: {error}") from error


_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


_TEXTS = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_null,  # a column without any value
)


def rows_of_slice(
    rows: pa.RecordBatch,
    draft: RecordDraft,
    queue_ids: NDArray[np.int32],
    turn: int,
    uniq_keys: UniqKeySource,
    max_body_bytes: int,
) -> RowBatch:
    """Return the rows of one slice as input of the encoder, with the index of each row's queue.

    Args:
        rows: The slice.
        draft: The record fields that are equal for all rows.
        queue_ids: Id of each queue on its broker.
        turn: Number of the slice. Without sharding keys all rows go to the queue with index
            `turn % len(queue_ids)`.
        uniq_keys: Source of the UNIQ_KEYs.
        max_body_bytes: Maximum size of a body.
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
        store_host_bytes=len(draft.born_host),
        properties=_text(rows, PROPERTIES) if PROPERTIES in rows.schema.names else None,
    )


def _text(rows: pa.RecordBatch, name: str) -> TextColumn:
    return text_column(rows.column(name)) if name in rows.schema.names else TextColumn.absent(rows.num_rows)

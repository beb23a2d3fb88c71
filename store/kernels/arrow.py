"""Conversion between records and Arrow: records to a RecordBatch, and Arrow columns for a bulk send."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from store.common.logs import get_logger
from store.kernels.columns_to_records import TextColumn
from store.kernels.memory import I64, U8
from store.kernels.records_to_columns import (
    I32,
    PropertyColumns,
    RecordColumns,
    Spans,
    find_property_columns,
    find_records,
    gather,
    read_records,
)
from store.message.buffers import Buffer
from store.message.compression import try_decompress
from store.message.sys_flag import COMPRESSED
from store.store_errors import MessageInvalid, RecordDamaged

_log = get_logger(__name__)

# Timestamps are milliseconds since the epoch. Compressed bodies are decompressed; a body that cannot be
# decompressed is that of the record, and BODY_ERROR has the reason.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("brokerName", pa.string(), nullable=False),
        pa.field("queueId", pa.int32(), nullable=False),
        pa.field("queueOffset", pa.int64(), nullable=False),
        pa.field("commitLogOffset", pa.int64(), nullable=False),
        pa.field("body", pa.binary()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("uniqKey", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("bornTimestamp", pa.int64(), nullable=False),
        pa.field("storeTimestamp", pa.int64(), nullable=False),
        pa.field("reconsumeTimes", pa.int32(), nullable=False),
    ]
)
BODY_ERROR = pa.field("bodyError", pa.string())
"""A column that is only built on request: why a body cannot be decompressed; null for all others."""
ALL_FIELDS = {field.name: field for field in (*RECORD_SCHEMA, BODY_ERROR)}
_LAST_ASCII = 0x7F
MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Maximum size of the bodies of a batch of which one is compressed, unless it has only one record."""


class BodiesTooLarge(Exception):
    """Compressed bodies exceed MAX_INFLATED_BYTES: convert only the first `rows` valid records at a time."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


def records_to_arrow(
    records: Buffer, broker_name: str, columns: Sequence[str] | None = None, *, check_crc: bool = True
) -> pa.RecordBatch:
    """Convert contiguous records to a batch with the columns of RECORD_SCHEMA or `columns` of ALL_FIELDS.

    Raises RecordDamaged with the position of the first invalid record, and BodiesTooLarge.
    """
    buffer = np.frombuffer(records, np.uint8)
    batch, damaged = _batch(buffer, find_records(buffer), broker_name, columns, check_crc)
    if damaged:
        raise damaged[0]
    return batch


def records_at_to_arrow(
    buffer: Buffer,
    positions: I64,
    broker_name: str,
    columns: Sequence[str] | None = None,
    *,
    check_crc: bool = True,
) -> tuple[pa.RecordBatch, list[RecordDamaged]]:
    """Convert the records at byte positions `positions` of `buffer` to an Arrow batch.

    The batch has the columns of RECORD_SCHEMA, or `columns` of ALL_FIELDS. Damaged records are left out.
    Raises BodiesTooLarge.

    Returns:
        The batch, and one error for each position without a valid record.
    """
    return _batch(np.frombuffer(buffer, np.uint8), positions, broker_name, columns, check_crc)


def text_column(array: pa.Array | pa.ChunkedArray) -> TextColumn:
    """Convert an Arrow column of strings, bytes or numbers to a `TextColumn`, the format of the kernels.

    Nulls become empty texts, and numbers become decimal text. Raises MessageInvalid if the column's type
    cannot be converted to text.
    """
    is_binary = pa.types.is_binary(array.type) or pa.types.is_fixed_size_binary(array.type)
    wide = pa.large_binary() if is_binary or pa.types.is_large_binary(array.type) else pa.large_string()
    try:
        array = array.cast(wide)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MessageInvalid(f"a column of type {array.type} cannot be sent as text: {error}") from error
    if array.null_count:
        array = array.fill_null(b"" if wide == pa.large_binary() else "")
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    _, offsets, data = array.buffers()
    rows = slice(array.offset, array.offset + len(array) + 1)
    return TextColumn(
        np.frombuffer(offsets, np.int64)[rows] if offsets else np.zeros(1, np.int64),
        np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8),
    )


class _Rows:
    """The valid records of a conversion. Each Arrow column is built when it is first needed."""

    def __init__(self, buffer: U8, fields: RecordColumns, broker_name: str) -> None:
        self.buffer = buffer
        self.fields = fields
        self.broker_name = broker_name.encode()
        self.count = len(fields.queue_ids)

    @cached_property
    def properties(self) -> PropertyColumns:
        return find_property_columns(self.buffer, self.fields.properties)

    def broker_names(self) -> pa.Array:
        offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(len(self.broker_name))
        data = np.frombuffer(self.broker_name * self.count, np.uint8)
        return _array(pa.string(), self.count, None, offsets, data)

    def texts(self, spans: Spans) -> pa.Array:
        """Build an Arrow text column from byte strings of the buffer.

        A record without such a string gets null; bytes that are not UTF-8 become U+FFFD.
        """
        offsets, data = gather(self.buffer, spans)
        array = _array(pa.string(), len(spans.starts), _validity(spans), offsets, data)
        if len(data) and data.max() > _LAST_ASCII:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                values = array.cast(pa.binary()).to_pylist()
                texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
                return pa.array(texts, pa.string())
        return array

    @cached_property
    def inflated(self) -> tuple[pa.Array, dict[int, str]]:
        """The bodies, and by row the reasons why bodies cannot be decompressed."""
        offsets, data = gather(self.buffer, self.fields.bodies)
        array = _array(pa.binary(), self.count, None, offsets, data)
        compressed = np.flatnonzero(self.fields.sys_flags & COMPRESSED)
        if not len(compressed):
            return array, {}
        values, errors, size = array.to_pylist(), {}, len(data)
        for row in compressed.tolist():
            values[row], error = try_decompress(values[row], int(self.fields.sys_flags[row]))
            if error is not None:
                errors[row] = error
            size += len(values[row])
            if size > MAX_INFLATED_BYTES and self.count > 1:
                raise BodiesTooLarge(max(row, 1))
        if errors:
            row = min(errors)  # the others only as a number: one sender may send any number of them
            position = int(self.fields.commit_log_offsets[row])
            _log.warning("bodies_undecodable", count=len(errors), position=position, error=errors[row])
        return pa.array(values, pa.binary()), errors

    def body_errors(self) -> pa.Array:
        errors = self.inflated[1]
        return pa.array([errors.get(row) for row in range(self.count)], pa.string())

    def maps(self) -> pa.Array:
        found = self.properties
        offsets = _numbers(found.pair_offsets)
        return pa.MapArray.from_arrays(offsets, self.texts(found.names), self.texts(found.values))


_BUILDERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "topic": lambda rows: rows.texts(rows.fields.topics),
    "brokerName": _Rows.broker_names,
    "queueId": lambda rows: _numbers(rows.fields.queue_ids),
    "queueOffset": lambda rows: _numbers(rows.fields.queue_offsets),
    "commitLogOffset": lambda rows: _numbers(rows.fields.commit_log_offsets),
    "body": lambda rows: rows.inflated[0],
    BODY_ERROR.name: _Rows.body_errors,
    "tags": lambda rows: rows.texts(rows.properties.tags),
    "keys": lambda rows: rows.texts(rows.properties.keys),
    "uniqKey": lambda rows: rows.texts(rows.properties.uniq_keys),
    "properties": _Rows.maps,
    "bornTimestamp": lambda rows: _numbers(rows.fields.born_timestamps),
    "storeTimestamp": lambda rows: _numbers(rows.fields.store_timestamps),
    "reconsumeTimes": lambda rows: _numbers(rows.fields.reconsume_times),
}


def _batch(
    buffer: U8, positions: I64, broker_name: str, columns: Sequence[str] | None, check_crc: bool
) -> tuple[pa.RecordBatch, list[RecordDamaged]]:
    fields, damaged = read_records(buffer, positions, check_crc=check_crc)
    rows = _Rows(buffer, fields, broker_name)
    schema = RECORD_SCHEMA if columns is None else pa.schema([ALL_FIELDS[name] for name in columns])
    arrays = [_BUILDERS[name](rows) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), damaged


def _numbers(values: I32 | I64) -> pa.Array:
    # Not `pa.array`: its first call imports pandas, which takes a second.
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _validity(spans: Spans) -> U8 | None:
    """Return Arrow's validity bitmap for a column: a bit is set if the row has a value.

    Returns None if all rows have a value.
    """
    present = spans.lengths >= 0
    return None if present.all() else np.packbits(present, bitorder="little")


def _array(kind: pa.DataType, count: int, validity: U8 | None, offsets: I32, data: U8) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])

"""Converts records to columns: arrays of numbers, and positions of byte strings, which are copied on demand.

A row is one record. A reader calls only the steps for the columns that it needs: find the records, read their
fixed fields, find their properties, copy the bytes of a column. `store.message.record.decode_record` is the
pure-Python equivalent.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import BYTES, I64, U8, WRITABLE_BYTES, copy_bytes, find_byte, load_i32, load_i64
from store.kernels.walk import BAD_CRC, BAD_PARTS, BLANK, REASONS, hosts_extra, record_parts, record_size
from store.message.record import (
    BODY_CRC,
    BORN_TIMESTAMP,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    STORE_TIMESTAMP,
    SYS_FLAG,
)
from store.store_errors import RecordDamaged

I32: TypeAlias = npt.NDArray[np.int32]

MAX_BUFFER_BYTES = (1 << 31) - 1  # positions in the buffer are stored as i32
MIN_PAIR_BYTES = 4  # of a property: name, separator, value, separator

# Rows of the tables `longs` and `ints` that `_read_fields` fills.
_LONGS = 4
_QUEUE_OFFSET, _PHYSICAL_OFFSET, _BORN_TIMESTAMP, _STORE_TIMESTAMP = range(_LONGS)
_INTS = 9
(
    _QUEUE_ID,
    _RECONSUME_TIMES,
    _SYS_FLAG,
    _BODY_START,
    _BODY_LENGTH,
    _TOPIC_START,
    _TOPIC_LENGTH,
    _PROPERTIES_START,
    _PROPERTIES_LENGTH,
) = range(_INTS)

# Rows of the table of known properties, and of the table of all pairs: start positions. The row after each
# contains the lengths.
_KNOWN = 6
_TAGS, _KEYS, _UNIQ_KEY = 0, 2, 4
_PAIRS = 4
_NAME, _VALUE = 0, 2

_NAME_TAGS = int.from_bytes(b"TAGS", "big")
_NAME_KEYS = int.from_bytes(b"KEYS", "big")
_NAME_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
_NAME_VALUE_SEPARATOR = 0x01
_SEPARATOR = 0x02

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)


class Spans(NamedTuple):
    """Start and length of one byte string in the buffer for each record.

    The length is -1 if the record has no such string.
    """

    starts: I32
    lengths: I32


class RecordColumns(NamedTuple):
    """The fixed fields of records, and the positions of bodies, topics and properties.

    One element per record.
    """

    queue_ids: I32
    queue_offsets: I64
    commit_log_offsets: I64
    born_timestamps: I64
    store_timestamps: I64
    reconsume_times: I32
    sys_flags: I32
    bodies: Spans
    topics: Spans
    properties: Spans


class PropertyColumns(NamedTuple):
    """The positions of the properties of records in the buffer.

    The properties of record i are the elements `pair_offsets[i]` to `pair_offsets[i + 1]` - 1 of `names` and
    `values`. `tags`, `keys` and `uniq_keys` have the values of these three properties.
    """

    tags: Spans
    keys: Spans
    uniq_keys: Spans
    pair_offsets: I32
    names: Spans
    values: Spans


def find_records(buffer: U8) -> I64:
    """Return the start positions of consecutive records. Raises RecordDamaged at the first invalid header."""
    count, end, code = _count_records(buffer)
    if code < 0:
        raise RecordDamaged(REASONS[code], position=end)
    positions = np.empty(count, np.int64)
    _find_records(buffer, positions)
    return positions


def read_records(buffer: U8, positions: I64, *, check_crc: bool) -> tuple[RecordColumns, list[RecordDamaged]]:
    """Read the fixed fields of the records at `positions` of the buffer.

    Returns:
        The columns of the valid records, and one error for each damaged record.

    Raises:
        ValueError: The buffer is longer than MAX_BUFFER_BYTES.
    """
    if len(buffer) > MAX_BUFFER_BYTES:
        raise ValueError(
            f"buffer of {len(buffer):,} bytes is over the limit of {MAX_BUFFER_BYTES:,}: read fewer records"
        )
    longs = np.empty((_LONGS, len(positions)), np.int64)
    ints = np.empty((_INTS, len(positions)), np.int32)
    codes = np.empty(len(positions), np.int64)
    valid = _read_fields(buffer, positions, check_crc, longs, ints, codes)
    longs, ints = longs[:, :valid], ints[:, :valid]
    damaged = [
        RecordDamaged(REASONS[int(codes[row])], position=int(positions[row]))
        for row in (np.flatnonzero(codes) if valid < len(positions) else ())
    ]
    columns = RecordColumns(
        queue_ids=ints[_QUEUE_ID],
        queue_offsets=longs[_QUEUE_OFFSET],
        commit_log_offsets=longs[_PHYSICAL_OFFSET],
        born_timestamps=longs[_BORN_TIMESTAMP],
        store_timestamps=longs[_STORE_TIMESTAMP],
        reconsume_times=ints[_RECONSUME_TIMES],
        sys_flags=ints[_SYS_FLAG],
        bodies=Spans(ints[_BODY_START], ints[_BODY_LENGTH]),
        topics=Spans(ints[_TOPIC_START], ints[_TOPIC_LENGTH]),
        properties=Spans(ints[_PROPERTIES_START], ints[_PROPERTIES_LENGTH]),
    )
    return columns, damaged


def find_property_columns(buffer: U8, properties: Spans) -> PropertyColumns:
    """Find the names and values of each record's properties.

    If a record contains a name twice, the last value is used.
    """
    rows = len(properties.starts)
    known = np.empty((_KNOWN, rows), np.int32)
    pair_offsets = np.empty(rows + 1, np.int32)
    capacity = (int(properties.lengths.sum(dtype=np.int64)) + rows) // MIN_PAIR_BYTES
    pairs = np.empty((_PAIRS, capacity), np.int32)
    count = _find_properties(buffer, properties.starts, properties.lengths, known, pair_offsets, pairs)
    return PropertyColumns(
        tags=Spans(known[_TAGS], known[_TAGS + 1]),
        keys=Spans(known[_KEYS], known[_KEYS + 1]),
        uniq_keys=Spans(known[_UNIQ_KEY], known[_UNIQ_KEY + 1]),
        pair_offsets=pair_offsets,
        names=Spans(pairs[_NAME, :count], pairs[_NAME + 1, :count]),
        values=Spans(pairs[_VALUE, :count], pairs[_VALUE + 1, :count]),
    )


def gather(buffer: U8, spans: Spans) -> tuple[I32, U8]:
    """Copy the byte strings at `spans` of the buffer into an Arrow binary column.

    Returns:
        The arrays `offsets` and `data` of the column: row i is `data[offsets[i] : offsets[i + 1]]`.
    """
    offsets = np.empty(len(spans.starts) + 1, np.int32)
    data = np.empty(_add_up(spans.lengths, offsets), np.uint8)
    _gather(buffer, spans.starts, offsets, data)
    return offsets, data


@kernel(types.UniTuple(types.int64, 3)(BYTES))
def _count_records(buffer: U8) -> tuple[int, int, int]:
    """Count the consecutive records at the beginning of the buffer.

    Returns:
        The number of records, the position after the last one, and the reason why no record follows (a code
            of
        `store.kernels.walk`; 0 at the end of the buffer).
    """
    count = 0
    position = 0
    while position < len(buffer):
        size = record_size(buffer, position, len(buffer))
        if size <= 0:
            return count, position, size if size < 0 else BAD_PARTS
        position += size
        count += 1
    return count, position, 0


@kernel(types.void(BYTES, types.int64[::1]))
def _find_records(buffer: U8, positions: I64) -> None:
    position = 0
    for row in range(len(positions)):
        positions[row] = position
        position += load_i32(buffer, position)


@kernel(
    types.int64(BYTES, _I64, types.boolean, types.int64[:, ::1], types.int32[:, ::1], types.int64[::1]),
)
def _read_fields(buffer: U8, positions: I64, check_crc: bool, longs: I64, ints: I32, codes: I64) -> int:
    """Read the fixed fields of the valid records at `positions`.

    Fills `longs` and `ints` with one column per valid record. `codes` receives one element per position: 0
    for a valid record, or the reason why the record is damaged (a code of `store.kernels.walk`).

    Returns:
        The number of valid records.
    """
    row = 0
    for index in range(len(positions)):
        position = positions[index]
        size = record_size(buffer, position, len(buffer)) if 0 <= position < len(buffer) else BAD_PARTS
        codes[index] = min(size, 0) if size != BLANK else BAD_PARTS
        if size <= 0:
            continue
        body, body_length, topic, topic_length, properties, properties_length = record_parts(
            buffer, position, size
        )
        if body_length < 0:
            codes[index] = BAD_PARTS
            continue
        crc = crc32_kernel(buffer, body, body + body_length) if check_crc else np.int64(0)
        if check_crc and body_length > 0 and crc != load_i32(buffer, position + BODY_CRC):
            codes[index] = BAD_CRC
            continue
        born_extra, both_extra = hosts_extra(buffer, position)
        longs[_QUEUE_OFFSET, row] = load_i64(buffer, position + QUEUE_OFFSET)
        longs[_PHYSICAL_OFFSET, row] = load_i64(buffer, position + PHYSICAL_OFFSET)
        longs[_BORN_TIMESTAMP, row] = load_i64(buffer, position + BORN_TIMESTAMP)
        longs[_STORE_TIMESTAMP, row] = load_i64(buffer, position + STORE_TIMESTAMP + born_extra)
        ints[_QUEUE_ID, row] = load_i32(buffer, position + QUEUE_ID)
        ints[_RECONSUME_TIMES, row] = load_i32(buffer, position + RECONSUME_TIMES + both_extra)
        ints[_SYS_FLAG, row] = load_i32(buffer, position + SYS_FLAG)
        ints[_BODY_START, row] = body
        ints[_BODY_LENGTH, row] = body_length
        ints[_TOPIC_START, row] = topic
        ints[_TOPIC_LENGTH, row] = topic_length
        ints[_PROPERTIES_START, row] = properties
        ints[_PROPERTIES_LENGTH, row] = properties_length
        row += 1
    return row


@helper()
def _earlier_pair(buffer: U8, pairs: I32, first: int, count: int, name: int, name_length: int) -> int:
    """Return the index of a property in [first, count) of `pairs` that has the same name, or -1.

    `name` is the position of the name in the buffer.
    """
    for pair in range(first, count):
        if pairs[_NAME + 1, pair] != name_length:
            continue
        other = pairs[_NAME, pair]
        index = 0
        while index < name_length and buffer[other + index] == buffer[name + index]:
            index += 1
        if index == name_length:
            return pair
    return -1


@helper()
def _known_row(buffer: U8, name: int, length: int) -> int:
    """Return the row for a property in the table of known properties (TAGS, KEYS, UNIQ_KEY), or -1.

    `name` is the position of the property's name in the buffer.
    """
    if length == 4:
        letters = load_i32(buffer, name)
        if letters == _NAME_TAGS:
            return _TAGS
        return _KEYS if letters == _NAME_KEYS else -1
    return _UNIQ_KEY if length == 8 and load_i64(buffer, name) == _NAME_UNIQ_KEY else -1


@kernel(
    types.int64(BYTES, _I32, _I32, types.int32[:, ::1], types.int32[::1], types.int32[:, ::1]),
)
def _find_properties(buffer: U8, starts: I32, lengths: I32, known: I32, pair_offsets: I32, pairs: I32) -> int:
    """Find the properties in the property strings at `starts`, one string per record.

    `pairs` receives the positions of all names and values, `pair_offsets` the index of each record's first
    pair, and `known` the positions of the values of TAGS, KEYS and UNIQ_KEY. Returns the number of pairs.
    """
    count = 0
    for row in range(len(starts)):
        pair_offsets[row] = count
        first = count
        for length_row in range(1, _KNOWN, 2):
            known[length_row, row] = -1
        position = np.int64(starts[row])
        properties_end = position + lengths[row]
        while position < properties_end:
            end = find_byte(buffer, position, properties_end, _SEPARATOR)
            separator = find_byte(buffer, position, end, _NAME_VALUE_SEPARATOR)
            name, name_length = position, separator - position
            value, value_length = separator + 1, end - separator - 1
            position = end + 1
            if name_length == 0 or value_length <= 0:
                continue
            known_row = _known_row(buffer, name, name_length)
            if known_row >= 0:
                known[known_row, row] = value
                known[known_row + 1, row] = value_length
            pair = _earlier_pair(buffer, pairs, first, count, name, name_length)
            if pair < 0:
                pair = count
                count += 1
            pairs[_NAME, pair] = name
            pairs[_NAME + 1, pair] = name_length
            pairs[_VALUE, pair] = value
            pairs[_VALUE + 1, pair] = value_length
    pair_offsets[len(starts)] = count
    return count


@kernel(types.int64(_I32, types.int32[::1]))
def _add_up(lengths: I32, offsets: I32) -> int:
    """Fill `offsets` with the running sum of `lengths`; a length of -1 counts as 0. Return the total."""
    total = 0
    offsets[0] = 0
    for row in range(len(lengths)):
        total += max(lengths[row], 0)
        offsets[row + 1] = total
    return total


@kernel(types.void(BYTES, _I32, _I32, WRITABLE_BYTES))
def _gather(buffer: U8, starts: I32, offsets: I32, data: U8) -> None:
    for row in range(len(starts)):
        start = np.int64(offsets[row])
        copy_bytes(data, start, buffer, np.int64(starts[row]), offsets[row + 1] - start)

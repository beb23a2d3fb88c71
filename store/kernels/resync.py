"""Finds the next valid record after damage in a log file.

To exclude bytes that only look like a record, its physicalOffset must equal its position and its CRC must be
right. A blank record that ends exactly at the end of its file is also accepted.
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import find_byte, load_i32, load_i64
from store.kernels.walk import (
    check_record_at,
    record_parts,
    record_size,
    store_timestamp_at,
)
from store.message.record import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_DIGITS,
    MAGIC_BLANK,
)

Bytes = NDArray[np.uint8]

_MAGIC_FIRST = 0xDA  # first byte of both record magics
_BLANK_FIRST = 0xCB
_HEAD_BYTES = 8
_SEPARATOR = 2
_CRC_NAME = int.from_bytes(b"__CRC32#", "big")


@kernel()
def next_record(buffer: Bytes, start: int, stop: int, size: int, base: int) -> int:
    """Return the position of the first valid record that begins in [start, stop), or `stop` if not found.

    `size` is the length of the log file, `base` the CommitLog offset of its first byte.
    """
    position = start
    while position + _HEAD_BYTES <= stop:
        position = find_byte(buffer, position + 4, stop, _MAGIC_FIRST) - 4
        if position + _HEAD_BYTES > stop:
            break
        if check_record_at(buffer, position, size, base, True) > 0:
            return position
        position += 1
    return stop


@kernel()
def closing_blank(buffer: Bytes, start: int, stop: int, size: int) -> int:
    """Return the position in [start, stop) of the blank record that ends exactly at the end of the file.

    Returns `stop` if there is no such blank record.
    """
    position = start
    while position + _HEAD_BYTES <= stop:
        position = find_byte(buffer, position + 4, stop, _BLANK_FIRST) - 4
        if position + _HEAD_BYTES > stop:
            break
        if load_i32(buffer, position + 4) == MAGIC_BLANK and load_i32(buffer, position) == size - position:
            return position
        position += 1
    return stop


@kernel()
def append_end(buffer: Bytes, start: int, size: int, base: int) -> int:
    """Return the position after the last of the consecutive valid records that can come from a single append.

    The first of these records must begin at `start`. Records of one append have the same topic, queue and
    storeTimestamp, and consecutive queue offsets.
    """
    position = start
    queue_id = queue_offset = timestamp = first_topic = first_length = 0
    while True:
        code = check_record_at(buffer, position, size, base, True)
        if code <= 0:
            return position
        _, _, topic, length, _, _ = record_parts(buffer, position, code)
        if position == start:
            queue_id = load_i32(buffer, position + 12)
            queue_offset = load_i64(buffer, position + 20)
            timestamp = store_timestamp_at(buffer, position)
            first_topic = topic
            first_length = length
        elif (
            load_i32(buffer, position + 12) != queue_id
            or load_i64(buffer, position + 20) != queue_offset
            or store_timestamp_at(buffer, position) != timestamp
            or length != first_length
        ):
            return position
        for index in range(length):
            if buffer[topic + index] != buffer[first_topic + index]:
                return position
        queue_offset += 1
        position += code


@kernel()
def next_bad_crc_property(buffer: Bytes, start: int, end: int) -> tuple[int, int]:
    """Find the next record in [start, end) whose whole-record CRC is wrong.

    Returns the position and size of the record, or (end, 0) if no such record exists. Records without the
    property that contains this CRC (docs/store-format.md#crc-property) are skipped.
    """
    position = start
    while position < end:
        size = record_size(buffer, position, end)
        if size <= 0:
            break
        _, body_length, _, _, _, length = record_parts(buffer, position, size)
        if body_length < 0:  # the position of the next record is unknown then
            break
        last = position + size - CRC_PROPERTY_BYTES
        if length >= CRC_PROPERTY_BYTES and load_i64(buffer, last) == _CRC_NAME and buffer[last + 8] == 1:
            stated = 0
            for digit in range(CRC_PROPERTY_DIGITS - 1, -1, -1):  # the lowest digit is stored first
                stated = stated * 10 + int(np.int64(buffer[last + 9 + digit])) - 0x30
            if stated != crc32_kernel(buffer, position, last) or buffer[position + size - 1] != _SEPARATOR:
                return position, size
        position += size
    return end, 0

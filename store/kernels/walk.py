"""Checks the records of a CommitLog file. Recovery and dispatch use the same rules.

See docs/store-format.md#record-check.

Most functions return a check code: the size of a valid record, BLANK for a blank record, or one of the
negative constants below, the reason why no valid record starts at the position. In addition to RocketMQ's
rules, the physicalOffset of a record must equal its position.
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import load_i16, load_i32, load_i64

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

BLANK = 0
NO_ROOM = -1  # not enough bytes for totalSize and magic
BEYOND_END = -2  # totalSize exceeds the end of the data, or is less than that of the smallest record
BAD_MAGIC = -3  # also for zeros
BAD_PARTS = -4  # the length fields do not add up to totalSize
BAD_CRC = -5
BAD_PLACE = -6  # physicalOffset is not the position of the record
BAD_TOPIC = -7

REASONS = {
    NO_ROOM: "fewer than 8 bytes before the end of the data",
    BEYOND_END: "totalSize is too small or exceeds the end of the data",
    BAD_MAGIC: "no record starts here: wrong magic",
    BAD_PARTS: "the fields of the record do not add up to totalSize",
    BAD_CRC: "the CRC of the body is wrong",
    BAD_PLACE: "physicalOffset is not the position of the record",
    BAD_TOPIC: "the topic is not a valid name",
}

# Fields of `found`, which `scan_records` fills.
SCAN_COUNT = 0
SCAN_LAST_POSITION = 1
SCAN_LAST_TIMESTAMP = 2
SCAN_FIELDS = 3

_V1 = 0xDAA320A7 - (1 << 32)
_V2 = 0xDAA320AB - (1 << 32)
_BLANK_MAGIC = 0xCBD43194 - (1 << 32)
_MIN_RECORD_BYTES = 91
_SPACE, _DOT, _SLASH = 0x20, 0x2E, 0x2F


@kernel()
def hosts_extra(buffer: Bytes, position: int) -> tuple[int, int]:
    """Return how many bytes IPv6 hosts add to a record, before storeTimestamp and before reconsumeTimes.

    The offsets of these two fields in a record are those with IPv4 hosts plus these numbers.
    """
    sys_flag = load_i32(buffer, position + 36)
    born = 12 if sys_flag & 0x10 else 0
    return born, born + (12 if sys_flag & 0x20 else 0)


@kernel()
def record_size(buffer: Bytes, position: int, limit: int) -> int:
    """Check only totalSize and magic of the record at `position`.

    Returns the size of the record, BLANK, or a negative reason code.
    """
    if limit - position < 8:
        return NO_ROOM
    size = load_i32(buffer, position)
    magic = load_i32(buffer, position + 4)
    if magic == _BLANK_MAGIC:
        return BLANK if 8 <= size <= limit - position else BEYOND_END
    if magic not in (_V1, _V2):
        return BAD_MAGIC
    return size if _MIN_RECORD_BYTES <= size <= limit - position else BEYOND_END


@kernel()
def record_parts(buffer: Bytes, position: int, size: int) -> tuple[int, int, int, int, int, int]:
    """Return the positions of the variable parts of the record at `position`, whose size is `size` bytes.

    Returns:
        Start and length of the body, start and length of the topic, start and length of the properties. The
        length of the body is -1 if the length fields do not add up to `size`.
    """
    bad = (0, -1, 0, 0, 0, 0)
    end = position + size
    body = position + 88 + hosts_extra(buffer, position)[1]
    if body + 3 > end:
        return bad
    body_length = load_i32(buffer, body - 4)
    width = 1 if load_i32(buffer, position + 4) == _V1 else 2
    topic = body + body_length + width
    if body_length < 0 or topic + 2 > end:
        return bad
    topic_length = load_i16(buffer, topic - 2) if width == 2 else int(np.int64(buffer[topic - 1]))
    properties = topic + topic_length + 2
    if topic_length < 0 or (width == 1 and topic_length > 127) or properties > end:
        return bad
    properties_length = load_i16(buffer, properties - 2)
    if properties_length < 0 or properties + properties_length != end:
        return bad
    return body, body_length, topic, topic_length, properties, properties_length


@kernel()
def body_is_valid(buffer: Bytes, position: int, body: int, body_length: int) -> bool:
    """Return True if the body of the record at `position` is empty, or its CRC equals the field bodyCRC.

    `body` is the position of the body.
    """
    return body_length == 0 or crc32_kernel(buffer, body, body + body_length) == load_i32(
        buffer, position + 8
    )


@kernel()
def is_topic(buffer: Bytes, start: int, length: int) -> bool:
    """Return True if the topic name at `start` can be used as a directory name.

    No CRC covers the topic of a record, so it may be damaged.
    """
    is_name = length > 0
    only_dots = True
    for position in range(start, start + length):
        byte = buffer[position]
        is_name &= (byte > _SPACE) & (byte != _SLASH)
        only_dots &= byte == _DOT
    return is_name and not only_dots


@kernel()
def check_record_at(buffer: Bytes, position: int, limit: int, base: int, check_crc: bool) -> int:
    """Check the record at `position`. Return its size, BLANK or a negative reason code.

    `limit` is the end of the data in the file, `base` the CommitLog offset of the file's first byte.
    """
    size = record_size(buffer, position, limit)
    if size <= 0:
        return size
    body, body_length, topic, topic_length, _, properties_length = record_parts(buffer, position, size)
    # Valid properties end with a separator or text. A zero at the end means that a page was lost.
    if body_length < 0 or (properties_length > 0 and buffer[position + size - 1] == 0):
        return BAD_PARTS
    if not is_topic(buffer, topic, topic_length):
        return BAD_TOPIC
    if load_i64(buffer, position + 28) != base + position:
        return BAD_PLACE
    return BAD_CRC if check_crc and not body_is_valid(buffer, position, body, body_length) else size


@kernel()
def store_timestamp_at(buffer: Bytes, position: int) -> int:
    """Return the storeTimestamp of the valid record at `position`."""
    return load_i64(buffer, position + 56 + hosts_extra(buffer, position)[0])


@kernel()
def scan_records(
    buffer: Bytes, start: int, limit: int, base: int, check_crc: bool, found: Numbers
) -> tuple[int, int]:
    """Check consecutive records, beginning at `start`, up to the first position without a valid record.

    `found` (SCAN_FIELDS numbers) receives the number of records, and the position (-1 if there are no
    records) and storeTimestamp of the last record.

    Returns:
        The position at which the scan stopped, and the reason: BLANK or a negative reason code.
    """
    position = start
    count = 0
    last = -1
    code = NO_ROOM
    while True:
        code = check_record_at(buffer, position, limit, base, check_crc)
        if code <= 0:
            break
        count += 1
        last = position
        position += code
    found[SCAN_COUNT] = count
    found[SCAN_LAST_POSITION] = last
    if last >= 0:
        found[SCAN_LAST_TIMESTAMP] = store_timestamp_at(buffer, last)
    return position, code

"""The walk over a CommitLog file: one rule for what a record is (store format 6.1), for recovery and dispatch
alike.

A code is the record's size, BLANK, or one of the reasons below zero. Beyond RocketMQ's rule a record must
stand where its own physicalOffset says.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.memory import load_i16, load_i32, load_i64
from store.message.record import RecordVerdict, check_record, decode_record

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

BLANK = 0
NO_ROOM = -1  # fewer bytes are left than a size and a magic take
BEYOND_END = -2  # the size leads over the end (or is less than the smallest record's)
BAD_MAGIC = -3  # also what zeros are
BAD_PARTS = -4  # the lengths within do not add up to the size
BAD_CRC = -5
BAD_PLACE = -6  # it says that it stands elsewhere
BAD_TOPIC = -7

REASONS = {
    NO_ROOM: "fewer than 8 bytes are left",
    BEYOND_END: "its size leads over the end of the data",
    BAD_MAGIC: "no record starts here",
    BAD_PARTS: "its parts do not add up to its size",
    BAD_CRC: "the body's CRC is wrong",
    BAD_PLACE: "its physicalOffset names another place",
    BAD_TOPIC: "its topic is no name",
}

# What `scan_records` tells besides its return value.
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
    """Bytes that IPv6 hosts add before storeTimestamp, and before reconsumeTimes."""
    sys_flag = load_i32(buffer, position + 36)
    born = 12 if sys_flag & 0x10 else 0
    return born, born + (12 if sys_flag & 0x20 else 0)


@kernel()
def record_size(buffer: Bytes, position: int, limit: int) -> int:
    """The size of the record at `position`, BLANK, or a reason; only size and magic are looked at."""
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
    """Where body, topic and properties start and how long they are; the body's length is -1 if they do not
    fit.
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
    """Whether the body of the record at `position` has the record's CRC; an empty one always has."""
    return body_length == 0 or crc32_kernel(buffer, body, body + body_length) == load_i32(
        buffer, position + 8
    )


@kernel()
def is_topic(buffer: Bytes, start: int, length: int) -> bool:
    """Whether this may be a topic's name: no CRC covers it, and it becomes a directory's name."""
    sound = length > 0
    only_dots = True
    for position in range(start, start + length):
        byte = buffer[position]
        sound &= (byte > _SPACE) & (byte != _SLASH)
        only_dots &= byte == _DOT
    return sound and not only_dots


@kernel()
def check_record_at(buffer: Bytes, position: int, limit: int, base: int, check_crc: bool) -> int:
    """Judge what stands at `position`; `limit` is the end of the file's data, `base` the offset of byte 0."""
    size = record_size(buffer, position, limit)
    if size <= 0:
        return size
    body, body_length, topic, topic_length, _, properties_length = record_parts(buffer, position, size)
    # A lost page leaves zeros: properties end with a separator, or with text at least.
    if body_length < 0 or (properties_length > 0 and buffer[position + size - 1] == 0):
        return BAD_PARTS
    if not is_topic(buffer, topic, topic_length):
        return BAD_TOPIC
    if load_i64(buffer, position + 28) != base + position:
        return BAD_PLACE
    return BAD_CRC if check_crc and not body_is_valid(buffer, position, body, body_length) else size


@kernel()
def store_timestamp_at(buffer: Bytes, position: int) -> int:
    """The storeTimestamp of the record at `position`, which has been checked."""
    return load_i64(buffer, position + 56 + hosts_extra(buffer, position)[0])


@kernel()
def scan_records(
    buffer: Bytes, start: int, limit: int, base: int, check_crc: bool, found: Numbers
) -> tuple[int, int]:
    """Walk records from `start` to the first thing that is none.

    Returns where that stands and its code. `found` (SCAN_FIELDS numbers) gets the count, and position and
    storeTimestamp of the last record; position -1 if there is none.
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


def plain_check_record_at(buffer: Any, position: int, limit: int, base: int, check_crc: bool) -> int:
    """The twin of `check_record_at` over the record codec; reasons are not told apart: all are BAD_PARTS."""
    view = memoryview(buffer)[:limit]
    check = check_record(view, position, check_crc=check_crc)
    if check.verdict == RecordVerdict.BLANK:
        return BLANK
    if check.verdict == RecordVerdict.DAMAGED:
        return BAD_PARTS
    own_place = int.from_bytes(view[position + 28 : position + 36], "big", signed=True)
    message = decode_record(view, position, check_crc=False)
    topic = message.topic
    is_name = bool(topic.strip(".")) and min(topic) > " " and "/" not in topic
    end = position + check.size_bytes
    hosts = sum(12 for bit in (0x10, 0x20) if message.sys_flag & bit)
    width = 1 if view[position + 7] == _V1 & 0xFF else 2
    name = position + 88 + hosts + len(message.body)
    properties = name + width + int.from_bytes(view[name : name + width], "big") + 2
    is_torn = end > properties and view[end - 1] == 0
    return check.size_bytes if own_place == base + position and is_name and not is_torn else BAD_PARTS

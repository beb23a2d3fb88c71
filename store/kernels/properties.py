"""Reads the properties of a record for the dispatch: the tags code for its queue unit, and its index keys.

In all functions, `found` holds the start and end positions of the values of TAGS, KEYS, UNIQ_KEY and DELAY in
the buffer. Both are 0 if the record does not have the property.
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.index import KEY_HASH, KEY_PHYSICAL_OFFSET, KEY_TIMESTAMP
from store.kernels.java_hash import as_i32, byte_at, hash_bytes, key_hash
from store.kernels.memory import find_byte, load_i32, load_i64

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

FOUND_FIELDS = 8
_TAGS_START, _TAGS_END = 0, 1
_KEYS_START, _KEYS_END = 2, 3
_UNIQ_START, _UNIQ_END = 4, 5
_DELAY_START, _DELAY_END = 6, 7

_KEYS = int.from_bytes(b"KEYS", "big")
_TAGS = int.from_bytes(b"TAGS", "big")
_DELA = int.from_bytes(b"DELA", "big")
_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
_Y = 0x59
_SPACE = 0x20
_PAIR_END = 2
_NAME_END = 1


@kernel()
def find_properties(buffer: Bytes, start: int, end: int, found: Numbers) -> None:
    """Find the values of TAGS, KEYS, UNIQ_KEY and DELAY in the property string at [start, end) of the buffer.

    Their start and end positions are written to `found`.
    """
    found[0:FOUND_FIELDS] = 0
    name = start
    while name < end:
        stop = find_byte(buffer, name, end, _PAIR_END)
        separator = find_byte(buffer, name, stop, _NAME_END)
        if name < separator < stop - 1:
            index = _property_index(buffer, name, separator - name)
            if index >= 0:  # the last of two equal names wins
                found[2 * index] = separator + 1
                found[2 * index + 1] = stop
        name = stop + 1


@kernel()
def _property_index(buffer: Bytes, name: int, length: int) -> int:
    if length == 4:
        word = load_i32(buffer, name)
        return 0 if word == _TAGS else 1 if word == _KEYS else -1
    if length == 8:
        return 2 if load_i64(buffer, name) == _UNIQ_KEY else -1
    if length == 5 and load_i32(buffer, name) == _DELA:
        return 3 if buffer[name + 4] == _Y else -1
    return -1


@kernel()
def tags_code_of(buffer: Bytes, found: Numbers, timestamp: int, delays_ms: Numbers, is_schedule: int) -> int:
    """Return the tags code for the consume queue unit of a record.

    The tags code is the hash of the record's TAGS. For a record of the topic SCHEDULE_TOPIC_XXXX, it is the
    time at which the message is to be delivered, in ms.
    """
    if is_schedule and found[_DELAY_END] > 0:
        due = _delivery_time(buffer, found[_DELAY_START], found[_DELAY_END], timestamp, delays_ms)
        if due > 0:
            return due
    return as_i32(hash_bytes(buffer, found[_TAGS_START], found[_TAGS_END], 0))


@kernel()
def _delivery_time(buffer: Bytes, start: int, end: int, timestamp: int, delays_ms: Numbers) -> int:
    """Return the time at which a delayed message is to be delivered, in ms (docs/store-format.md#tags-code).

    The value of DELAY at [start, end) is the delay level. Returns 0 if it is not a positive number.
    """
    level = 0
    for position in range(start, end):
        digit = byte_at(buffer, position) - 0x30
        if digit < 0 or digit > 9 or level > 1_000_000:
            return 0
        level = level * 10 + digit
    if level == 0:
        return 0
    level = min(level, delays_ms.size - 1)
    return timestamp + (delays_ms[level] if delays_ms[level] > 0 else 1000)


@kernel()
def add_keys(
    buffer: Bytes, found: Numbers, seed: int, physical_offset: int, timestamp: int, keys: Numbers, count: int
) -> int:
    """Append one row to `keys` for the UNIQ_KEY of a record, and one for each of its KEYS.

    `count` is the number of rows already in `keys`, and `seed` the hash of "topic#", the prefix of index
    keys. Returns the new number of rows.
    """
    if found[_UNIQ_END] > 0:
        keys[count, KEY_HASH] = key_hash(hash_bytes(buffer, found[_UNIQ_START], found[_UNIQ_END], seed))
        keys[count, KEY_PHYSICAL_OFFSET] = physical_offset
        keys[count, KEY_TIMESTAMP] = timestamp
        count += 1
    start = found[_KEYS_START]
    end = found[_KEYS_END]
    while start < end:
        stop = start
        while stop < end and buffer[stop] != _SPACE:
            stop += 1
        if stop > start:
            keys[count, KEY_HASH] = key_hash(hash_bytes(buffer, start, stop, seed))
            keys[count, KEY_PHYSICAL_OFFSET] = physical_offset
            keys[count, KEY_TIMESTAMP] = timestamp
            count += 1
        start = stop + 1
    return count

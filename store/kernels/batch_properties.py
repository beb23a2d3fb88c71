"""Adds properties to those messages of a batch request that do not have them."""

from collections.abc import Mapping

import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.encode import check_batch
from store.kernels.memory import (
    BYTES,
    I64,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    find_byte,
    load_i16,
    load_i32,
    store_i16,
    store_i32,
    store_u8,
)
from store.message import batch as element
from store.message.buffers import Buffer
from store.message.properties import encode_properties
from store.message.record import MAX_PROPERTIES_BYTES
from store.store_errors import MessageInvalid

NAMES_MAX = 16
"""Largest number of properties that can be added: each name is compared with those of all messages."""
_NAME_END, _PAIR_END = 1, 2


def with_properties(batch: Buffer, properties: Mapping[str, str], max_added_bytes: int) -> Buffer:
    """Return the body of a batch request in which each message has `properties`, unless it has its own.

    Args:
        batch: The body of the batch request.
        properties: At most NAMES_MAX properties.
        max_added_bytes: Limit of the bytes that the properties may add to all messages together.

    Raises:
        MessageInvalid: The lengths in the batch are inconsistent, or properties are too many or too long.
    """
    count = check_batch(batch)
    pairs = [encode_properties({name: value}) for name, value in properties.items()]
    added_bytes = count * sum(map(len, pairs))
    if len(pairs) > NAMES_MAX or added_bytes > max_added_bytes:
        raise MessageInvalid(
            f"the header of the batch has {len(pairs)} properties, which add {added_bytes:,} bytes to "
            f"{count:,} messages: the limits are {NAMES_MAX} and {max_added_bytes:,} bytes, so use fewer"
        )
    pair_ends = np.cumsum(list(map(len, pairs)), dtype=np.int64)
    name_keys = np.array([_key_of(name.encode("utf-8", "replace")) for name in properties], np.int64)
    merged = np.empty(len(batch) + added_bytes + count, np.uint8)
    source = np.frombuffer(batch, np.uint8)
    size_bytes = _merge(source, np.frombuffer(b"".join(pairs), np.uint8), pair_ends, name_keys, merged)
    if size_bytes < 0:
        raise _too_long(-1 - size_bytes)
    return merged[:size_bytes].data


def _key_of(name: bytes) -> int:
    """Return a number that differs for most names: it contains the length, the first and the last byte."""
    return len(name) << 16 | name[0] << 8 | name[-1]


def _too_long(position: int) -> MessageInvalid:
    return MessageInvalid(
        f"the properties of the message at byte {position} of the batch, with those of the header, are over "
        f"the limit of {MAX_PROPERTIES_BYTES:,} bytes: move data to the body"
    )


@helper()
def _held_names(batch: U8, start: int, end: int, pairs: U8, pair_ends: I64, name_keys: I64) -> int:
    """Return a bit mask of the pairs whose names are in the property string at [start, end) of the batch."""
    held = 0
    name = start
    while name < end:
        stop = find_byte(batch, name, end, _PAIR_END)
        separator = find_byte(batch, name, stop, _NAME_END)
        if name < separator < stop - 1:  # else readers skip the pair
            length = separator - name
            key = length << 16 | batch[name] << 8 | batch[separator - 1]
            for index in range(len(pair_ends)):
                if name_keys[index] == key:
                    begin = pair_ends[index - 1] if index > 0 else 0
                    same = 1
                    while same < length and batch[name + same] == pairs[begin + same]:
                        same += 1
                    if same == length:
                        held |= 1 << index
        name = stop + 1
    return held


@kernel([types.int64(BYTES, BYTES, types.int64[::1], types.int64[::1], WRITABLE_BYTES)])
def _merge(batch: U8, pairs: U8, pair_ends: I64, name_keys: I64, merged: U8) -> int:
    """Write the messages of a valid batch, with the pairs that they lack, to `merged`.

    `pairs` contains property strings of one pair each, `pair_ends` where each of them ends, and `name_keys`
    the `_key_of` its name. Returns the number of bytes, or -1 - the position of a message whose properties
    are too long.
    """
    source = 0
    target = 0
    while source < len(batch):
        size = load_i32(batch, source)
        properties_at = source + element.ELEMENT_HEADER_BYTES + load_i32(batch, source + element.BODY_LENGTH)
        own_bytes = load_i16(batch, properties_at)
        end = properties_at + 2 + own_bytes
        copy_bytes(merged, target, batch, source, size)
        stop = target + size
        held = _held_names(batch, properties_at + 2, end, pairs, pair_ends, name_keys)
        for index in range(len(pair_ends)):
            if held >> index & 1 == 0:
                if stop == target + size and own_bytes > 0 and batch[end - 1] != _PAIR_END:
                    store_u8(merged, stop, _PAIR_END)
                    stop += 1
                begin = pair_ends[index - 1] if index > 0 else 0
                copy_bytes(merged, stop, pairs, begin, pair_ends[index] - begin)
                stop += pair_ends[index] - begin
        total_bytes = own_bytes + stop - target - size
        if total_bytes > MAX_PROPERTIES_BYTES:
            return -1 - source
        store_i32(merged, target, stop - target)
        store_i16(merged, target + properties_at - source, total_bytes)
        source += size
        target = stop
    return target

"""Computes Java's String.hashCode() of UTF-8 bytes: h = 31·h + c over the UTF-16 code units of the text.

Invalid UTF-8 counts as U+FFFD, one for each maximal invalid part, as Java and Python decode it.
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.memory import load_i32
from store.message.tags import java_hash

Bytes = NDArray[np.uint8]

_MASK = 0xFFFFFFFF
_REPLACEMENT = 0xFFFD
_HIGH_BITS = -0x7F7F7F80  # 0x80808080 as a signed number


@kernel()
def byte_at(buffer: Bytes, position: int) -> int:
    """Return the byte at `position` as a signed number: sums with unsigned ones would become floats."""
    return int(np.int64(buffer[position]))


@kernel()
def _sequence(first: int) -> tuple[int, int, int]:
    """Return the number of continuation bytes of a UTF-8 leading byte, and the range of the first of them.

    The number is -1 if `first` is not a leading byte.
    """
    if 0xC2 <= first <= 0xDF:
        return 1, 0x80, 0xBF
    if 0xE0 <= first <= 0xEF:
        return 2, 0xA0 if first == 0xE0 else 0x80, 0x9F if first == 0xED else 0xBF
    if 0xF0 <= first <= 0xF4:
        return 3, 0x90 if first == 0xF0 else 0x80, 0x8F if first == 0xF4 else 0xBF
    return -1, 0, 0


@kernel()
def decode_code_point(buffer: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return the code point of the non-ASCII UTF-8 sequence at `position`, and the position after it."""
    first = byte_at(buffer, position)
    following, low, high = _sequence(first)
    position += 1
    if following < 0:
        return _REPLACEMENT, position
    value = first & (0x3F >> following)
    for _ in range(following):
        if position >= end or not low <= buffer[position] <= high:
            return _REPLACEMENT, position
        value = value << 6 | byte_at(buffer, position) & 0x3F
        position += 1
        low = 0x80
        high = 0xBF
    return value, position


@kernel()
def hash_bytes(buffer: Bytes, start: int, end: int, seed: int) -> int:
    """Return the hash of the UTF-8 text in [start, end), continued from `seed`, as an unsigned i32."""
    value = seed
    position = start
    while position < end:
        # Process four ASCII characters per step: the chain of dependent multiplications limits the speed.
        if position + 4 <= end and load_i32(buffer, position) & _HIGH_BITS == 0:
            letters = (
                (byte_at(buffer, position) * 31 + byte_at(buffer, position + 1)) * 31
                + byte_at(buffer, position + 2)
            ) * 31 + byte_at(buffer, position + 3)
            value = (value * 923521 + letters) & _MASK
            position += 4
            continue
        unit = byte_at(buffer, position)
        if unit < 0x80:
            position += 1
        else:
            unit, position = decode_code_point(buffer, position, end)
            if unit >= 0x10000:
                value = (value * 31 + 0xD800 + ((unit - 0x10000) >> 10)) & _MASK
                unit = 0xDC00 + (unit & 0x3FF)
        value = (value * 31 + unit) & _MASK
    return value


@kernel()
def as_i32(value: int) -> int:
    """Convert an unsigned 32-bit number to a signed one with the same bits."""
    return value - 0x100000000 if value & 0x80000000 else value


@kernel()
def key_hash(value: int) -> int:
    """Return the keyHash of an index entry: the absolute hash value, or 0 for Java's Integer.MIN_VALUE."""
    signed = as_i32(value)
    return 0 if signed == -0x80000000 else abs(signed)


def plain_hash(text: bytes) -> int:
    """Pure-Python equivalent of `hash_bytes` with seed 0, for tests."""
    return java_hash(text.decode("utf-8", "replace")) & _MASK


def plain_key_hash(text: bytes) -> int:
    """Return the keyHash of an index entry for the key `text` (UTF-8), without compiled code."""
    signed = java_hash(text.decode("utf-8", "replace"))
    return 0 if signed == -0x80000000 else abs(signed)

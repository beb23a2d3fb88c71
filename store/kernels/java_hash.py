"""Java's String.hashCode over UTF-8 bytes: 31·h + c over the UTF-16 code units that the text would have.

Bytes that are no UTF-8 count as U+FFFD, one for each maximal part, as Java and Python decode them.
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
    """The byte at `position` as a signed number: an unsigned one would turn sums into floats."""
    return int(np.int64(buffer[position]))


@kernel()
def _sequence(first: int) -> tuple[int, int, int]:
    """What a leading byte asks for: how many bytes follow, and the range of the first of them; -1 if it is
    none.
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
    """The code point of the non-ASCII sequence at `position`, and where the next one starts."""
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
    """The hash of the text in [start, end) continued from `seed`, as 32 bits without a sign."""
    value = seed
    position = start
    while position < end:
        # Four ASCII letters at once: the chain of multiplications is what this waits for.
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
    """32 bits without a sign, read as a signed number."""
    return value - 0x100000000 if value & 0x80000000 else value


@kernel()
def key_hash(value: int) -> int:
    """The hash that an index entry keeps: without its sign, 0 for Java's Integer.MIN_VALUE."""
    signed = as_i32(value)
    return 0 if signed == -0x80000000 else abs(signed)


def plain_hash(text: bytes) -> int:
    """The twin of `hash_bytes` from seed 0."""
    return java_hash(text.decode("utf-8", "replace")) & _MASK


def plain_key_hash(text: bytes) -> int:
    """The twin of `key_hash` over a whole text."""
    signed = java_hash(text.decode("utf-8", "replace"))
    return 0 if signed == -0x80000000 else abs(signed)

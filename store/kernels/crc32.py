"""CRC-32 (IEEE, reflected) for use inside kernels: by folding where the processor can, else by slicing-by-16.

Slicing takes sixteen bytes a step, with one table look-up for each. Source: M. Kounavis, F. Berry, "A
systematic approach to building high performance software-based CRC generators" (2005). The plain twin is
`store.message.crc.crc32`.
"""

import numpy as np
import numpy.typing as npt

from store.kernels.carryless import BLOCK_BYTES, LANE_BYTES, fold, is_available
from store.kernels.compiled import helper
from store.kernels.memory import U8, load_u64_little

POLYNOMIAL = 0xEDB88320
SLICES = 16


def _tables() -> npt.NDArray[np.uint32]:
    tables = np.zeros((SLICES, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for slice_ in range(1, SLICES):
        previous = tables[slice_ - 1]
        tables[slice_] = (previous >> np.uint32(8)) ^ tables[0, previous & np.uint32(0xFF)]
    return tables.reshape(-1)


_TABLES = _tables()
_BYTE = np.uint64(0xFF)
_ALL_ONES = np.uint64(0xFFFFFFFF)
_CAN_FOLD = is_available()


@helper()
def _slice(low: np.uint64, high: np.uint64) -> np.uint64:
    """The state after sixteen bytes, with the state before them xor-ed into the first four."""
    state = np.uint64(0)
    for byte in range(8):
        shift = np.uint64(8 * byte)
        state ^= np.uint64(_TABLES[((low >> shift) & _BYTE) + np.uint64(256 * (15 - byte))])
        state ^= np.uint64(_TABLES[((high >> shift) & _BYTE) + np.uint64(256 * (7 - byte))])
    return state


@helper()
def crc32_sliced(buffer: U8, start: int, end: int, state: np.uint64) -> np.uint64:
    """The state after `buffer[start:end]`; a CRC is the state from all ones, inverted."""
    position = start
    while position + SLICES <= end:
        low = load_u64_little(buffer, position) ^ state
        state = _slice(low, load_u64_little(buffer, position + 8))
        position += SLICES
    while position < end:
        state = (state >> np.uint64(8)) ^ np.uint64(_TABLES[(state ^ np.uint64(buffer[position])) & _BYTE])
        position += 1
    return state


@helper()
def crc32_kernel(buffer: U8, start: int, end: int) -> np.int64:
    """CRC-32 of `buffer[start:end]`, 31 bits as RocketMQ keeps it."""
    state = _ALL_ONES
    if _CAN_FOLD and end - start >= BLOCK_BYTES:
        blocks = (end - start) // BLOCK_BYTES
        lanes = (end - start) % BLOCK_BYTES // LANE_BYTES
        low, high = fold(buffer, start, blocks, lanes, state)
        state = _slice(low, high)
        start += blocks * BLOCK_BYTES + lanes * LANE_BYTES
    return np.int64(crc32_sliced(buffer, start, end, state) ^ _ALL_ONES) & 0x7FFFFFFF

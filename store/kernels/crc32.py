"""CRC-32 (IEEE, reflected) by slicing-by-16: sixteen bytes a step, one table look-up for each.

Source: M. Kounavis, F. Berry, "A systematic approach to building high performance software-based CRC
generators" (2005). Its plain twin is `store.message.crc.crc32`.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

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


@njit(nogil=True)
def crc32_kernel(buffer: U8, start: int, end: int) -> np.int64:
    """CRC-32 of `buffer[start:end]`, 31 bits as RocketMQ keeps it; for use inside kernels."""
    crc = np.uint64(0xFFFFFFFF)
    position = start
    while position + SLICES <= end:
        low = load_u64_little(buffer, position) ^ crc
        high = load_u64_little(buffer, position + 8)
        crc = np.uint64(0)
        for byte in range(8):
            shift = np.uint64(8 * byte)
            crc ^= np.uint64(_TABLES[((low >> shift) & _BYTE) + np.uint64(256 * (15 - byte))])
            crc ^= np.uint64(_TABLES[((high >> shift) & _BYTE) + np.uint64(256 * (7 - byte))])
        position += SLICES
    while position < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_TABLES[(crc ^ np.uint64(buffer[position])) & _BYTE])
        position += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF)) & 0x7FFFFFFF

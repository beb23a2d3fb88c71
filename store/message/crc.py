"""CRC-32: of bodies as RocketMQ keeps it, with the sign bit cleared (store format 1.2), or over parts.

Kernels have their own (`store.kernels.crc32`).
"""

from store.message.buffers import Buffer

try:
    from isal.isal_zlib import crc32 as running_crc
except ImportError:  # isal has no wheel for every platform
    from zlib import crc32 as running_crc

__all__ = ["CRC_MASK", "crc32", "running_crc"]

CRC_MASK = 0x7FFF_FFFF


def crc32(data: Buffer) -> int:
    """Return the CRC-32 (IEEE) of `data`, 31 bits."""
    return running_crc(data) & CRC_MASK

"""CRC-32 (IEEE), with the implementation of the isal package if it is installed, else of zlib.

`crc32` clears the sign bit, as RocketMQ does in records (docs/store-format.md#record). `running_crc` returns
all 32 bits and takes the CRC of the preceding bytes as second argument. Compiled kernels use
`store.kernels.crc32`.
"""

from store.message.buffers import Buffer

try:
    from isal.isal_zlib import crc32 as running_crc
except ImportError:  # isal has no wheel for every platform
    from zlib import crc32 as running_crc

__all__ = ["CRC_MASK", "crc32", "running_crc"]

CRC_MASK = 0x7FFF_FFFF


def crc32(data: Buffer) -> int:
    """Return the CRC-32 (IEEE) of `data` with the sign bit cleared: 31 bits."""
    return running_crc(data) & CRC_MASK

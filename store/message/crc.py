"""CRC-32 as RocketMQ keeps it: of the body as stored, with the sign bit cleared (store format 1.2)."""

from store.message.buffers import Buffer

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # isal has no wheel for every platform
    from zlib import crc32 as _crc32

CRC_MASK = 0x7FFF_FFFF


def crc32(data: Buffer) -> int:
    """CRC-32 (IEEE) of `data`, 31 bits."""
    return _crc32(data) & CRC_MASK

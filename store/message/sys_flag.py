"""The bits of a record's sysFlag (docs/store-format.md#sysflag).

    0x700         0x80    0x40     0x20       0x10      0x0C          0x2          0x1
    | compression | batch | unwrap | store v6 | born v6 | transaction | multi tags | compressed |

Compression type 0 of a compressed body means zlib, the only codec of old clients.
"""

COMPRESSED = 0x001
MULTI_TAGS = 0x002

TRANSACTION_MASK = 0x00C
TRANSACTION_NONE = 0x000
TRANSACTION_PREPARED = 0x004
TRANSACTION_COMMIT = 0x008
TRANSACTION_ROLLBACK = 0x00C
# This bit is set in PREPARED and ROLLBACK only. No consume queue refers to such records; queueOffset is 0.
TRANSACTION_UNQUEUED = 0x004

BORN_HOST_V6 = 0x010
STORE_HOST_V6 = 0x020
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6

NEED_UNWRAP = 0x040
INNER_BATCH = 0x080

COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300


def is_compressed(sys_flag: int) -> bool:
    """Return True if `sys_flag` marks the body as compressed."""
    return bool(sys_flag & COMPRESSED)

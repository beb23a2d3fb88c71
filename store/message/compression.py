"""Compress and decompress message bodies (docs/store-format.md#sysflag).

Clients compress and decompress; brokers store bodies as received.
"""

import zlib

from store.message.sys_flag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    is_compressed,
)
from store.store_errors import MessageInvalid

DEFAULT_LEVEL = 5
MAX_PLAIN_BYTES = 64 << 20  # limits the memory that a small malicious body can make a client allocate


def compress(
    body: bytes, compression: int = COMPRESSION_ZLIB, level: int = DEFAULT_LEVEL
) -> tuple[bytes, int]:
    """Compress a message body; `sys_flag` selects the codec with one of the COMPRESSION_ constants.

    Returns:
        The compressed body, and the sysFlag bits that mark it as compressed with this codec.
    """
    bits = COMPRESSED | compression
    if compression == COMPRESSION_LZ4:
        import lz4.frame

        return lz4.frame.compress(body, compression_level=level), bits
    if compression == COMPRESSION_ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body), bits
    return zlib.compress(body, level), bits


def decompress(body: bytes, sys_flag: int, max_plain_bytes: int = MAX_PLAIN_BYTES) -> bytes:
    """Return the decompressed body, or `body` itself if `sys_flag` does not mark it as compressed.

    Raises:
        MessageInvalid: The body cannot be decompressed, its codec is unknown, or the result is longer than
            `max_plain_bytes`.
    """
    if not is_compressed(sys_flag):
        return body
    compression = sys_flag & COMPRESSION_MASK
    try:
        if compression == COMPRESSION_LZ4:
            plain = _inflate_lz4(body, max_plain_bytes + 1)
        elif compression == COMPRESSION_ZSTD:
            plain = _inflate_zstd(body, max_plain_bytes + 1)
        elif compression in (COMPRESSION_ZLIB, 0):  # 0: old clients, which knew zlib only
            plain = _inflate_zlib(body, max_plain_bytes + 1)
        else:
            raise MessageInvalid(
                f"compression type {compression:#05x} of the body is unknown: "
                "use 0x100 (LZ4), 0x200 (ZSTD) or 0x300 (ZLIB)"
            )
    except (ValueError, RuntimeError, MemoryError) as error:
        raise MessageInvalid(f"body of {len(body):,} bytes cannot be decompressed: {error}") from error
    if len(plain) > max_plain_bytes:
        raise MessageInvalid(
            f"body of {len(body):,} bytes decompresses to more than the limit of {max_plain_bytes:,} bytes"
        )
    return plain


def try_decompress(body: bytes, sys_flag: int) -> tuple[bytes, str | None]:
    """Return the decompressed body and None, or `body` unchanged and why it cannot be decompressed.

    For readers: a body that its sender marked wrongly must not hide the messages after it.
    """
    try:
        return decompress(body, sys_flag), None
    except MessageInvalid as error:
        return body, error.remark


def _inflate_zlib(body: bytes, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, limit_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof and len(plain) < limit_bytes:
        raise ValueError("the compressed stream is truncated")
    return plain


def _inflate_lz4(body: bytes, limit_bytes: int) -> bytes:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = inflater.decompress(body, limit_bytes)
    if not inflater.eof and len(plain) < limit_bytes:
        raise ValueError("the compressed stream is truncated")
    return plain


def _inflate_zstd(body: bytes, limit_bytes: int) -> bytes:
    import zstandard

    try:
        plain = zstandard.ZstdDecompressor().stream_reader(body).read(limit_bytes)
        if len(plain) < limit_bytes:
            # The stream reader treats the end of its input as the end of the frame. Decompress again with
            # `decompressobj`, whose `eof` is True only at the real end of the frame.
            frame = zstandard.ZstdDecompressor().decompressobj()
            frame.decompress(body)
            if not frame.eof:
                raise ValueError("the compressed stream is truncated")
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return plain

"""Compressed bodies: clients compress and inflate, brokers store what they get (store format 1.4)."""

import zlib

from store.message.message import MessageExt
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
MAX_PLAIN_BYTES = 64 << 20  # a small body must not inflate without end


def compress(
    body: bytes, compression: int = COMPRESSION_ZLIB, level: int = DEFAULT_LEVEL
) -> tuple[bytes, int]:
    """The compressed body and the sysFlag bits that say so; `compression` is one of sys_flag's."""
    bits = COMPRESSED | compression
    if compression == COMPRESSION_LZ4:
        import lz4.frame

        return lz4.frame.compress(body, compression_level=level), bits
    if compression == COMPRESSION_ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body), bits
    return zlib.compress(body, level), bits


def decompress(body: bytes, sys_flag: int, max_plain_bytes: int = MAX_PLAIN_BYTES) -> bytes:
    """The plain body, `body` itself where `sys_flag` does not say that it is compressed.

    Raises MessageInvalid when it cannot be inflated or is over `max_plain_bytes`.
    """
    if not is_compressed(sys_flag):
        return body
    compression = sys_flag & COMPRESSION_MASK
    try:
        if compression == COMPRESSION_LZ4:
            plain = _inflate_lz4(body, max_plain_bytes + 1)
        elif compression == COMPRESSION_ZSTD:
            plain = _inflate_zstd(body, max_plain_bytes + 1)
        elif compression in (COMPRESSION_ZLIB, 0):  # 0: clients from before there was a choice
            plain = _inflate_zlib(body, max_plain_bytes + 1)
        else:
            raise MessageInvalid(
                f"compression type {compression:#05x} is not known (0x100 LZ4, 0x200 ZSTD, 0x300 ZLIB)"
            )
    except (ValueError, RuntimeError) as error:
        raise MessageInvalid(f"a body of {len(body):,} bytes cannot be inflated: {error}") from error
    if len(plain) > max_plain_bytes:
        raise MessageInvalid(f"a body of {len(body):,} bytes inflates to more than {max_plain_bytes:,} bytes")
    return plain


def plain_body(message: MessageExt) -> bytes:
    """The body as its producer gave it. Raises MessageInvalid when it cannot be inflated."""
    return decompress(message.body, message.sys_flag)


def _inflate_zlib(body: bytes, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, limit_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof and len(plain) < limit_bytes:
        raise ValueError("the stream ends early")
    return plain


def _inflate_lz4(body: bytes, limit_bytes: int) -> bytes:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = inflater.decompress(body, limit_bytes)
    if not inflater.eof and len(plain) < limit_bytes:
        raise ValueError("the stream ends early")
    return plain


def _inflate_zstd(body: bytes, limit_bytes: int) -> bytes:
    import zstandard

    try:
        plain = zstandard.ZstdDecompressor().stream_reader(body).read(limit_bytes)
        if len(plain) < limit_bytes:
            # The reader takes the end of its input for the end of the frame; this tells one from the other.
            frame = zstandard.ZstdDecompressor().decompressobj()
            frame.decompress(body)
            if not frame.eof:
                raise ValueError("the stream ends early")
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return plain

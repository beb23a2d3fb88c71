"""Gzip of known size: requests and message bodies are inflated only within a limit that is known before.

The last four bytes of a gzip stream are the size of its content (RFC 1952). A stream that inflates to more is
refused, so nothing is inflated beyond what its sender has declared.
"""

from __future__ import annotations

import zlib
from typing import Final

INLINE_BYTES: Final = 64 * 1024
"""Inflating or decoding more than this takes long enough to delay other calls: it runs in a thread."""
_WBITS: Final = 31
_MAGIC: Final = b"\x1f\x8b"
_SIZE_BYTES: Final = 4


class GzipInvalid(Exception):
    """The data is not one complete gzip stream of the declared size."""


def declared_size(data: bytes) -> int:
    """Return the size that the data declares to have when inflated; 0 if it is no gzip."""
    return int.from_bytes(data[-_SIZE_BYTES:], "little") if data.startswith(_MAGIC) else 0


def inflate(data: bytes) -> bytes:
    """Return the content of a gzip stream, at most `declared_size` bytes. Raises GzipInvalid."""
    inflater, size_bytes = zlib.decompressobj(_WBITS), declared_size(data)
    try:
        plain = inflater.decompress(data, size_bytes + 1)
    except zlib.error as error:
        raise GzipInvalid(f"not valid gzip: {error}") from None
    if len(plain) > size_bytes:
        raise GzipInvalid(
            f"a gzip stream that inflates to more than the {size_bytes:,} bytes that it declares"
        )
    if not inflater.eof:
        raise GzipInvalid("an incomplete gzip stream")
    return plain

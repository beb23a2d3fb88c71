"""Text files that people and other tools write."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file without the byte order mark that some editors write at its beginning.

    Raises OSError, and UnicodeDecodeError if it is not UTF-8.
    """
    return path.read_text("utf-8-sig")


def without_mark(first: bytes) -> bytes:
    """Return the first bytes of a UTF-8 text without its byte order mark."""
    return first.removeprefix(BOM_UTF8)

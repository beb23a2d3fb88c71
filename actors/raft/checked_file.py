"""A small JSON file with a checksum, which is never read as an empty one if it is damaged.

    {"crc": 1234567890,
     KEY: …}

`crc` is the CRC32 of the compact JSON text of the value of KEY with sorted keys.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import orjson

from store.store_errors import StoreError


def encode_checked(key: str, value: Any) -> bytes:
    """Return the content of a file with `value` under `key`."""
    return orjson.dumps({"crc": _crc(value), key: value}, option=orjson.OPT_INDENT_2)


def decode_checked(content: bytes, key: str, path: Path, remedy: str) -> Any:
    """Return the value under `key` in `content`, which was read from the file `path`.

    Raises StoreError, whose message ends with `remedy`, if the content is damaged.
    """
    try:
        document: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise StoreError(f"is damaged: {error} ({remedy})", path) from error
    if not (isinstance(document, dict) and document.keys() >= {key, "crc"}):
        raise StoreError(f"is damaged: it is no object with `crc` and `{key}` ({remedy})", path)
    if document["crc"] != _crc(document[key]):
        raise StoreError(f"is damaged: its CRC is wrong ({remedy})", path)
    return document[key]


def _crc(value: Any) -> int:
    return zlib.crc32(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))

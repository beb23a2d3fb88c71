"""The hash of a message's tag, by which brokers filter messages (docs/store-format.md#tags-code)."""

from array import array
from functools import lru_cache

_CACHED_CHARS_MAX = 128  # with 8,192 entries, the cache holds at most a few megabytes


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode()` of `text`: h = 31·h + c over UTF-16 code units, a signed i32."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=8192)
def _cached_hash(tags: str) -> int:
    return java_hash(tags)


def tags_code(tags: str | None) -> int:
    """Return the tagsCode of a consume queue unit: the hash of the TAGS property, or 0 without it."""
    if not tags:
        return 0
    return _cached_hash(tags) if len(tags) <= _CACHED_CHARS_MAX else java_hash(tags)

"""Tags and their hash, by which brokers filter (store format, section 2)."""

from array import array
from functools import lru_cache


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: 31·h + c over UTF-16 code units, as a signed 32-bit number."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=8192)
def _cached_hash(tags: str) -> int:
    return java_hash(tags)


def tags_code(tags: str | None) -> int:
    """The tagsCode of a ConsumeQueue unit: the hash of the TAGS property, 0 where there is none."""
    return _cached_hash(tags) if tags else 0

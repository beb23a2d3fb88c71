"""SizedCache: a least-recently-used cache whose entries take at most a number of bytes in total."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class SizedCache(Generic[KeyT, ValueT]):
    """Keeps the entries that were used last. An entry that exceeds the limit alone is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self.size_bytes = 0

    def __contains__(self, key: KeyT) -> bool:
        return key in self._entries

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of `key`, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: KeyT, value: ValueT, size_bytes: int) -> None:
        """Keep a value of about `size_bytes`, and drop those that were not used for the longest time."""
        self._remove(key)
        if size_bytes > self._bytes_max:
            return
        self._entries[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: KeyT) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry[1]

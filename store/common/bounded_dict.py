"""BoundedDict: a dict that drops its oldest entries over a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class BoundedDict(OrderedDict[KeyT, ValueT]):
    """Over its limit, the entry that was added first is dropped.

    A new value does not make an entry younger. Call `move_to_end` to keep what was used last.
    """

    def __init__(self, limit: int, on_drop: Callable[[KeyT, ValueT], object] | None = None) -> None:
        """Create an empty dict. `on_drop` is called with each entry that gives way."""
        super().__init__()
        self._limit = limit
        self._on_drop = on_drop

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        super().__setitem__(key, value)
        while len(self) > self._limit:
            dropped = self.popitem(last=False)
            if self._on_drop is not None:
                self._on_drop(*dropped)

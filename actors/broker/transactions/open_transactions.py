"""OpenTransactions: which half messages are not finished yet. It does no I/O.

A half message is identified by its offset in the half queue:

    begin                               end of the half queue
    | open | finished | finished | open | …

All half messages before `begin` are finished. A half message is finished when its transaction was committed
or rolled back, when a newer copy replaces it, or when the broker has given up. Each finishes only once, so a
commit that a producer repeats has no effect.
"""

from __future__ import annotations

from typing import NamedTuple


class HalfPlace(NamedTuple):
    """Where a half message is stored: its offset in the half queue and its CommitLog offset."""

    offset: int
    position: int


class OpenTransactions:
    """The open transactions of one broker."""

    def __init__(self, begin: int) -> None:
        """Create the state; all half messages before `begin` are finished."""
        self.begin = begin
        """Offset of the first half message that may be open."""
        self._finished: set[int] = set()
        # By offset of the first half message: its newest copy.
        self._copies: dict[int, HalfPlace] = {}

    def count(self, end: int) -> int:
        """Return the number of open transactions if the half queue ends at `end`."""
        return max(end - self.begin - len(self._finished), 0)

    def is_open(self, offset: int) -> bool:
        """Return True if the half message at `offset` of the half queue is not finished."""
        return offset >= self.begin and offset not in self._finished

    def newest(self, first: int, place: HalfPlace) -> HalfPlace | None:
        """Return the newest copy of a half message, or None if the transaction is finished.

        Args:
            first: offset of the first half message of the transaction.
            place: the half message or copy that a producer refers to.
        """
        found = self._copies.get(first, place)
        return found if self.is_open(found.offset) else None

    def copied(self, first: int, copy: HalfPlace) -> list[int]:
        """Record a copy of a half message; return the offsets of the open half messages that it replaces."""
        known = self._copies.get(first)
        replaced = [] if known is None else [known.offset]
        self._copies[first] = copy
        return [offset for offset in {first, *replaced} if offset < copy.offset and self.is_open(offset)]

    def finish(self, offset: int, first: int | None = None) -> None:
        """Record that a half message is finished; with `first`, the whole transaction."""
        if first is not None:
            self._copies.pop(first, None)
        if offset < self.begin:
            return
        self._finished.add(offset)
        self._advance()

    def skip_to(self, begin: int) -> None:
        """Forget the half messages before `begin`: their records are deleted."""
        if begin > self.begin:
            self.begin = begin
            self._finished = {offset for offset in self._finished if offset >= begin}
            self._advance()

    def _advance(self) -> None:
        while self.begin in self._finished:
            self._finished.remove(self.begin)
            self.begin += 1

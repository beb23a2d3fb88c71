"""OpenTransactions: the state of half messages, open or finished, in memory. It does no I/O.

A half message is identified by its offset in the half queue:

    begin                               end of the half queue
    | open | finished | finished | open | …

All half messages before `begin` are finished. A half message is finished when its transaction was committed
or rolled back, when a newer copy replaces it, or when the broker has given it up. It cannot become open
again, so a repeated commit has no effect.
"""

from __future__ import annotations

from typing import NamedTuple


class HalfPlace(NamedTuple):
    """Location of a half message: `offset` in the half queue and `position` in the CommitLog."""

    offset: int
    position: int


class OpenTransactions:
    """The open and finished half messages of one broker."""

    def __init__(self, begin: int) -> None:
        """Create the state in which only the half messages before offset `begin` are finished."""
        self.begin = begin
        """Offset of the first half message that may be open; all earlier ones are finished."""
        self._finished: set[int] = set()
        # Newest copy of each half message, by the offset of the first half message.
        self._copies: dict[int, HalfPlace] = {}

    def count(self, end: int) -> int:
        """Return the number of open transactions if the half queue ends at `end`."""
        return max(end - self.begin - len(self._finished), 0)

    @property
    def finished_count(self) -> int:
        """Number of finished half messages behind the first open one, which are kept in memory."""
        return len(self._finished)

    def is_open(self, offset: int) -> bool:
        """Return True if the half message at `offset` of the half queue is not finished."""
        return offset >= self.begin and offset not in self._finished

    def newest(self, first: int, place: HalfPlace) -> HalfPlace | None:
        """Return the location of the newest copy of a half message, or None if the transaction is finished.

        Args:
            first: offset of the first half message of the transaction.
            place: the half message, or any copy; returned if no copy is known.
        """
        found = self._copies.get(first, place)
        return found if self.is_open(found.offset) else None

    def copied(self, first: int, copy: HalfPlace) -> list[int]:
        """Record a new copy of the half message that is at offset `first`.

        Returns the offsets of the open half messages that the copy replaces; the caller must finish them.
        """
        known = self._copies.get(first)
        replaced = [] if known is None else [known.offset]
        self._copies[first] = copy
        return [offset for offset in {first, *replaced} if offset < copy.offset and self.is_open(offset)]

    def finish(self, offset: int, first: int | None = None) -> None:
        """Mark the half message at `offset` as finished.

        The caller passes `first`, the offset of the first half message, if the whole transaction is finished.
        """
        if first is not None:
            self._copies.pop(first, None)
        if offset < self.begin:
            return
        self._finished.add(offset)
        self._advance()

    def skip_to(self, begin: int) -> None:
        """Mark all half messages before `begin` as finished, because their records were deleted."""
        if begin > self.begin:
            self.begin = begin
            self._finished = {offset for offset in self._finished if offset >= begin}
            self._advance()

    def _advance(self) -> None:
        while self.begin in self._finished:
            self._finished.remove(self.begin)
            self.begin += 1

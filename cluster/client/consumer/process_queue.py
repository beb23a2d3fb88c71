"""ProcessQueue: the fetched but unfinished messages of one queue, and the offset that may be committed.

It has no I/O. Listeners finish portions in any order, but the commit offset never passes an unfinished one:

committed ≤ … | finished | running | finished | running | … next_offset … fetched, waiting … fetched_to
              ^ commit_offset: everything before it is finished
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Portion:
    """Messages of one listener call: queue offsets [begin, end), `count` messages of `size_bytes` bytes."""

    begin: int
    end: int
    count: int
    size_bytes: int
    is_finished: bool = False


class ProcessQueue:
    """The unfinished portions of one queue in offset order, and its number of cached messages and bytes."""

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        self.fetched_to = offset
        self.cached_messages = 0
        self.cached_bytes = 0
        self._portions: deque[Portion] = deque()
        self._finished_to = offset

    @property
    def commit_offset(self) -> int:
        """Return the offset to commit: all messages before it are consumed."""
        return self._finished_to

    @property
    def span(self) -> int:
        """Return the number of offsets from the first unfinished message to the last fetched one."""
        return self.fetched_to - self._finished_to

    def arrived(self, next_offset: int, count: int, size_bytes: int) -> None:
        """Add `count` fetched messages of `size_bytes` bytes in total; the next fetch is at `next_offset`."""
        self.fetched_to = max(self.fetched_to, next_offset)
        self.cached_messages += count
        self.cached_bytes += size_bytes

    def discard_filtered(self, count: int) -> None:
        """Subtract `count` fetched messages that the tag filter discarded."""
        self.cached_messages -= count

    def take(self, begin: int, end: int, count: int, size_bytes: int) -> Portion:
        """Return a new unfinished portion for the offsets [begin, end).

        Raises ValueError if the range does not follow the portions taken before.
        """
        if begin < self.next_offset or end < begin:
            raise ValueError(
                f"offsets [{begin}, {end}) do not follow the last portion, which ends at {self.next_offset}"
            )
        portion = Portion(begin, end, count, size_bytes)
        self._portions.append(portion)
        self.next_offset = end
        self.fetched_to = max(self.fetched_to, end)
        return portion

    def finish(self, portion: Portion) -> None:
        """Mark `portion` as consumed, and move `commit_offset` past all finished portions at the head."""
        if portion.is_finished:
            return
        portion.is_finished = True
        self.cached_messages -= portion.count
        self.cached_bytes -= portion.size_bytes
        while self._portions and self._portions[0].is_finished:
            self._finished_to = self._portions.popleft().end

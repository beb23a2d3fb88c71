"""What a push consumer has fetched of one queue and not finished: which offset may be committed. Pure.

committed ≤ … | finished | in work | finished | in work | … next_offset … fetched, waiting … fetched_to
              ^ commit_offset: everything before it is finished
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Portion:
    """Messages handed to a listener at once: queue offsets [begin, end), `count` messages of `size_bytes`."""

    begin: int
    end: int
    count: int
    size_bytes: int
    is_finished: bool = False


class ProcessQueue:
    """The portions of one queue in work, in the order of their offsets, and how much waits behind them."""

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        self.fetched_to = offset
        self.cached_messages = 0
        self.cached_bytes = 0
        self._portions: deque[Portion] = deque()
        self._finished_to = offset

    @property
    def commit_offset(self) -> int:
        """Where the group would go on after a crash: everything before it has been consumed."""
        return self._finished_to

    @property
    def span(self) -> int:
        """From the first unfinished offset to the last that is fetched."""
        return self.fetched_to - self._finished_to

    @property
    def in_work(self) -> int:
        """How many portions are unfinished."""
        return sum(not portion.is_finished for portion in self._portions)

    def arrived(self, next_offset: int, count: int, size_bytes: int) -> None:
        """Note that `count` messages of `size_bytes` before `next_offset` are fetched."""
        self.fetched_to = max(self.fetched_to, next_offset)
        self.cached_messages += count
        self.cached_bytes += size_bytes

    def left_out(self, count: int) -> None:
        """Note that `count` of the messages that arrived are not wanted."""
        self.cached_messages -= count

    def take(self, begin: int, end: int, count: int, size_bytes: int) -> Portion:
        """Note that offsets [begin, end) are handed out; they must follow what was taken before. Raises
        ValueError.
        """
        if begin < self.next_offset or end < begin:
            raise ValueError(f"offsets [{begin}, {end}) do not follow {self.next_offset}")
        portion = Portion(begin, end, count, size_bytes)
        self._portions.append(portion)
        self.next_offset = end
        self.fetched_to = max(self.fetched_to, end)
        return portion

    def finish(self, portion: Portion) -> None:
        """Note that `portion` is consumed; moves `commit_offset` past everything that is finished at the
        head.
        """
        if portion.is_finished:
            return
        portion.is_finished = True
        self.cached_messages -= portion.count
        self.cached_bytes -= portion.size_bytes
        while self._portions and self._portions[0].is_finished:
            self._finished_to = self._portions.popleft().end

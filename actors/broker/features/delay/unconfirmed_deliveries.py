"""UnconfirmedDeliveries: the appended deliveries that the CommitLog may still lose.

    append ──► may be lost ──(dispatched, so confirmed)──► forgotten
                    └──(the log is truncated)──► lost: the message must be delivered again

The log loses its unconfirmed end when another broker becomes the master.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from store.dispatch.sink import RecordBatch
from store.kernels import units


class Delivery(NamedTuple):
    """A delivered message of a delay level."""

    end: int
    """The end of the delivered record in the CommitLog."""
    level: int
    offset: int
    """The offset of the message in the queue of its level."""


class UnconfirmedDeliveries:
    """The unconfirmed deliveries of one broker, in the order of their appends (a dispatch sink)."""

    missing_from = None

    def __init__(self) -> None:
        self._unconfirmed: deque[Delivery] = deque()
        self._lost: dict[int, int] = {}

    def add(self, delivery: Delivery) -> None:
        """Record a delivery that was appended."""
        self._unconfirmed.append(delivery)

    def take_lost(self) -> dict[int, int]:
        """Return, once, the offset of the first lost message of each level that has one."""
        lost, self._lost = self._lost, {}
        return lost

    def accept(self, batch: RecordBatch) -> None:
        """Forget the deliveries in a dispatched batch."""
        if not self._unconfirmed:
            return
        position, size = batch.rows[-1, : units.ROW_SIZE + 1].tolist()
        end = batch.file.base + position + size
        while self._unconfirmed and self._unconfirmed[0].end <= end:
            self._unconfirmed.popleft()

    def rewind(self, offset: int) -> None:
        """Note the deliveries that the log has lost."""
        while self._unconfirmed and self._unconfirmed[-1].end > offset:
            lost = self._unconfirmed.pop()
            self._lost[lost.level] = min(lost.offset, self._lost.get(lost.level, lost.offset))

"""How far the log is written, flushed, confirmed and dispatched: computed here only (design law 2).

    min ≤ dispatched ≤ confirmed ≤ written, and flushed ≤ written

All are physical offsets, the ends of what has been done. Acknowledgements are callbacks on `confirmed`.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from store.store_errors import StoreError

Callback = Callable[[StoreError | None], None]


class ConfirmPolicy(Protocol):
    """Decides what `confirmed` promises (design section 4)."""

    def confirmed(self, positions: "Positions", replicas: Sequence[int]) -> int:
        """Return the offset up to which the store keeps its promise, never beyond `positions.written`.

        `replicas` are the offsets that the replicas have acknowledged.
        """


class SyncFlush:
    """What is flushed is confirmed."""

    def confirmed(self, positions: "Positions", replicas: Sequence[int]) -> int:
        """Return `flushed`."""
        return positions.flushed


class AsyncFlush:
    """What is written is confirmed."""

    def confirmed(self, positions: "Positions", replicas: Sequence[int]) -> int:
        """Return `written`."""
        return positions.written


CONFIRM_POLICIES: dict[str, ConfirmPolicy] = {"sync": SyncFlush(), "async": AsyncFlush()}
"""The policy of each value of the setting `flush`."""


class _Waiter(NamedTuple):
    offset: int
    order: int
    callback: Callback


class Positions:
    """The positions of one log, and the callbacks that wait for them."""

    __slots__ = (
        "_order",
        "_policy",
        "_waiters",
        "awaited",
        "dispatched",
        "flushed",
        "min",
        "written",
    )

    def __init__(self, policy: ConfirmPolicy = CONFIRM_POLICIES["sync"]) -> None:
        self.min = 0
        self.written = 0
        self.flushed = 0
        self.dispatched = 0
        self.awaited = 0
        """The end of the last message that a reader was already waiting for when it was written."""
        self._policy = policy
        self._waiters: list[_Waiter] = []
        self._order = 0

    @property
    def confirmed(self) -> int:
        """Up to here the store keeps its promise."""
        return self._policy.confirmed(self, ())

    def set_all(self, min_offset: int, offset: int) -> None:
        """After recovery: the log holds [min_offset, offset), all of it written, flushed and confirmed."""
        self.min = min_offset
        self.written = self.flushed = self.dispatched = offset

    def truncate_to(self, offset: int) -> None:
        """After a truncation nothing reaches beyond `offset`."""
        self.written = min(self.written, offset)
        self.flushed = min(self.flushed, offset)
        self.dispatched = min(self.dispatched, offset)
        self.awaited = min(self.awaited, offset)

    def on_confirmed(self, offset: int, callback: Callback) -> None:
        """Call back, in a later `run_callbacks`, when `confirmed` has reached `offset`."""
        self._order += 1
        waiter = _Waiter(offset, self._order, callback)
        if not self._waiters or self._waiters[-1].offset <= offset:
            self._waiters.append(waiter)
        else:
            insort(self._waiters, waiter)

    @property
    def has_waiters(self) -> bool:
        """Whether anyone waits to be called back."""
        return bool(self._waiters)

    @property
    def waiting(self) -> int:
        """How many wait to be called back."""
        return len(self._waiters)

    @property
    def first_waiting(self) -> int:
        """The lowest offset that somebody waits for; call only if somebody does."""
        return self._waiters[0].offset

    def run_callbacks(self) -> None:
        """Call those whose offset is confirmed, in the order of their offsets."""
        confirmed = self.confirmed
        waiters = self._waiters
        count = 0
        while count < len(waiters) and waiters[count].offset <= confirmed:
            count += 1
        if count == 0:
            return
        self._waiters = waiters[count:]
        for waiter in waiters[:count]:
            waiter.callback(None)

    def fail(self, error: StoreError) -> None:
        """Tell all who wait that their offset will not be confirmed."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.callback(error)

"""The positions of the CommitLog: how far it is written, flushed, confirmed and dispatched.

    min ≤ dispatched ≤ confirmed ≤ written, and flushed ≤ written

Each position is a CommitLog offset: everything before it is written, flushed and so on. They are computed in
this module only (docs/design.md#invariant-2). Acknowledgements are callbacks on `confirmed`.
"""

from bisect import insort
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from store.store_errors import StoreError

Callback = Callable[[StoreError | None], None]


class ConfirmPolicy(Protocol):
    """Decides up to which offset messages are acknowledged as durable (docs/extending.md#confirm-policy)."""

    def confirmed(self, positions: "Positions", replicas: Mapping[int, int]) -> int:
        """Return the CommitLog offset before which all messages are confirmed.

        `replicas` maps the id of each replica to the CommitLog offset up to which it has the log.
        """


class SyncFlush:
    """Confirms messages when they are flushed to disk."""

    def confirmed(self, positions: "Positions", replicas: Mapping[int, int]) -> int:
        """Return the flushed position: records before it are confirmed."""
        return positions.flushed


class AsyncFlush:
    """Confirms messages when they are written to the page cache."""

    def confirmed(self, positions: "Positions", replicas: Mapping[int, int]) -> int:
        """Return the written position: records before it are confirmed."""
        return positions.written


CONFIRM_POLICIES: dict[str, ConfirmPolicy] = {"sync": SyncFlush(), "async": AsyncFlush()}
"""Maps each value of the setting `flush` to the policy that decides when messages are confirmed."""


class _Waiter(NamedTuple):
    offset: int
    order: int
    callback: Callback
    messages: int


class Positions:
    """The positions of one CommitLog, and callbacks that are called when an offset is confirmed."""

    __slots__ = (
        "_end_at",
        "_is_end_known",
        "_order",
        "_policy",
        "_waiters",
        "awaited",
        "checkpointed",
        "confirmed",
        "dispatched",
        "flushed",
        "min",
        "recovered",
        "replicas",
        "waiting",
        "written",
    )

    def __init__(self, policy: ConfirmPolicy = CONFIRM_POLICIES["sync"]) -> None:
        self.min = 0
        self.written = 0
        self.flushed = 0
        self.dispatched = 0
        self.checkpointed = 0
        """The position of the last checkpoint: a power loss takes no unit of a record before it."""
        self.recovered = 0
        """The end of the log when the store was opened: this process wrote all records after it."""
        self.awaited = 0
        """The end of the last message written to a queue for which a reader was waiting at that time."""
        self.replicas: dict[int, int] = {}
        """Maps the id of each replica to the CommitLog offset up to which it has the log."""
        self.confirmed = 0
        """The CommitLog offset before which all messages are confirmed, as of the last `confirm`.

        It falls only when the log is truncated: readers may have the messages before it already.
        """
        self._end_at = 0
        self._is_end_known = False
        self.waiting = 0
        """The number of messages that wait for confirmation."""
        self._policy = policy
        self._waiters: list[_Waiter] = []
        self._order = 0

    @property
    def is_replicated(self) -> bool:
        """True if the confirm policy depends on other replicas, so that the log may end unconfirmed."""
        return all(self._policy is not local for local in CONFIRM_POLICIES.values())

    @property
    def is_end_known(self) -> bool:
        """True if `confirmed` is the end of what readers may have seen.

        After a start of a replica it is only a lower bound of that, until all that the log had then is
        confirmed again. Until then the absence of a message means nothing.
        """
        if not self._is_end_known:
            self._is_end_known = self.confirmed >= self._end_at
        return self._is_end_known

    @property
    def hidden_bytes(self) -> int:
        """The bytes that are to be confirmed until the end is known; 0 if it is."""
        return 0 if self.is_end_known else self._end_at - self.confirmed

    def forget_end(self) -> None:
        """Let the end be unknown until all that is written now is confirmed.

        For a replica that takes over from another one, which may have confirmed more.
        """
        self._end_at, self._is_end_known = self.written, False

    def acknowledge(self, replica: int, offset: int) -> None:
        """Record that a replica has the log up to CommitLog offset `offset`."""
        self.replicas[replica] = offset

    def remove_replica(self, replica: int) -> None:
        """Forget the position of a replica, for example because its connection is closed."""
        self.replicas.pop(replica, None)

    def set_all(self, min_offset: int, offset: int) -> None:
        """Set all positions after recovery.

        The records in [min_offset, offset) are flushed; the confirm policy decides which are dispatched.
        """
        self.min = self.confirmed = min_offset
        self.written = self.flushed = self.recovered = offset
        self.forget_end()
        self.confirm()
        self.dispatched = self.confirmed

    def restore_confirmed(self, offset: int) -> int:
        """Raise `confirmed` and `dispatched` to at least `offset`, which was confirmed before a restart.

        Returns `confirmed`.
        """
        self.confirmed = max(self.confirmed, min(offset, self.written))
        self.confirm()
        self.dispatched = self.confirmed
        return self.dispatched

    def truncate_to(self, offset: int, error: StoreError) -> None:
        """Lower all positions to at most `offset`, after the log was truncated.

        The callbacks of later offsets are called with `error`: other records will be written there.
        """
        self.written = min(self.written, offset)
        self.flushed = min(self.flushed, offset)
        self.dispatched = min(self.dispatched, offset)
        self.recovered = min(self.recovered, offset)
        self._end_at = min(self._end_at, offset)
        self.awaited = min(self.awaited, offset)
        self.confirmed = min(self.confirmed, offset)
        self.fail(error, beyond=offset)

    def on_confirmed(self, offset: int, callback: Callback, messages: int = 1) -> None:
        """Register a callback that `confirm` calls after `confirmed` has reached `offset`.

        The argument of the callback is None. If the store fails before, `fail` calls it with the error.
        """
        self._order += 1
        self.waiting += messages
        waiter = _Waiter(offset, self._order, callback, messages)
        if not self._waiters or self._waiters[-1].offset <= offset:
            self._waiters.append(waiter)
        else:
            insort(self._waiters, waiter)

    def confirm(self) -> None:
        """Set `confirmed` to what the confirm policy computes.

        Call, and remove, all callbacks whose offset is confirmed, in ascending order of offsets.
        """
        confirmed = self._policy.confirmed(self, self.replicas)
        if confirmed > self.confirmed:
            self.confirmed = min(confirmed, self.written)
        confirmed, waiters, count = self.confirmed, self._waiters, 0
        while count < len(waiters) and waiters[count].offset <= confirmed:
            count += 1
        if count == 0:
            return
        self._waiters = waiters[count:]  # before the calls, which may register further callbacks
        for waiter in waiters[:count]:
            self.waiting -= waiter.messages
            waiter.callback(None)

    def fail(self, error: StoreError, *, beyond: int = -1) -> None:
        """Call, and remove, all callbacks of offsets after `beyond` with `error`.

        These offsets will not be confirmed.
        """
        waiters = self._waiters
        self._waiters = [waiter for waiter in waiters if waiter.offset <= beyond]
        for waiter in waiters[len(self._waiters) :]:
            self.waiting -= waiter.messages
            waiter.callback(error)

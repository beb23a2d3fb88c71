"""Answers to senders, held back until the promise covers what they sent (design law 2).

The store calls back when `confirmed` has passed an append's end: in the same tick under async flush, after
the next flush under sync. An answer that is not due within the flush time-out says so (FLUSH_DISK_TIMEOUT:
stored, not yet durable).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from actors.remoting.codes import ResponseCode
from store.clock import Clock
from store.errors import StoreError

Answer = Callable[[ResponseCode, str | None], None]
"""Sends the answer: SUCCESS, or the code and remark of what went wrong."""


class ConfirmingStore(Protocol):
    """The face of `MessageStore` that acknowledgements need."""

    def on_confirmed(self, offset: int, callback: Callable[[StoreError | None], None]) -> None:
        """Call back when the log up to `offset` is confirmed, or can never be."""


class PendingAck:
    """One answer that waits for its bytes to be confirmed."""

    __slots__ = ("_answer", "deadline_ns", "is_answered")

    def __init__(self, answer: Answer, deadline_ns: int) -> None:
        self._answer = answer
        self.deadline_ns = deadline_ns
        self.is_answered = False

    def __call__(self, error: StoreError | None) -> None:
        """Answer the sender, unless the time-out already has."""
        if self.is_answered:
            return
        self.is_answered = True
        if error is None:
            self._answer(ResponseCode.SUCCESS, None)
        else:
            self._answer(ResponseCode.SYSTEM_ERROR, str(error))

    def time_out(self, timeout_ms: int) -> None:
        """Tell the sender that the message is stored but not flushed yet."""
        self.is_answered = True
        remark = f"stored, but not flushed within sync_flush_timeout_ms {timeout_ms}: the disk is slow"
        self._answer(ResponseCode.FLUSH_DISK_TIMEOUT, remark)


class Acks:
    """All answers that wait on one store."""

    def __init__(self, store: ConfirmingStore, clock: Clock, timeout_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._waiting: deque[PendingAck] = deque()

    def __len__(self) -> int:
        self._drop_answered()
        return len(self._waiting)

    def when_confirmed(self, offset: int, answer: Answer) -> None:
        """Send `answer` when the log up to `offset` is confirmed."""
        ack = PendingAck(answer, self._clock.monotonic_ns() + self._timeout_ms * 1_000_000)
        self._waiting.append(ack)
        self._store.on_confirmed(offset, ack)

    def sweep(self) -> None:
        """Answer those that have waited too long; call a few times a second."""
        self._drop_answered()
        now_ns = self._clock.monotonic_ns()
        waiting = self._waiting
        while waiting and waiting[0].deadline_ns <= now_ns:
            ack = waiting.popleft()
            if not ack.is_answered:
                ack.time_out(self._timeout_ms)

    def _drop_answered(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].is_answered:
            waiting.popleft()

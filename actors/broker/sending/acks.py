"""Responses to senders, held back until what they sent is confirmed (design invariant 2).

The store calls back when `confirmed` has passed an append's end: in the same tick under async flush, after
the next flush under sync flush. After `sync_flush_timeout_ms` the response is FLUSH_DISK_TIMEOUT: stored, but
not durable yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from actors.remoting.codes import ResponseCode
from store.clock import NS_PER_MS, Clock
from store.store_errors import StoreError


class ConfirmingStore(Protocol):
    """The part of `MessageStore` that acknowledgements need."""

    def on_confirmed(self, offset: int, callback: Callable[[StoreError | None], None]) -> None:
        """Call back when the log up to `offset` is confirmed, or with the error that prevents it."""


class PendingAck:
    """One response that waits for its bytes to be confirmed.

    A subclass sends it, once, and then drops its references: `Acks` keeps it until its bucket is done.
    """

    __slots__ = ("is_answered",)

    def __init__(self) -> None:
        self.is_answered = False

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        """Send the response: SUCCESS, or the code and remark of an error."""
        raise NotImplementedError

    def __call__(self, error: StoreError | None) -> None:
        """Respond, unless the time-out has already done so."""
        if self.is_answered:
            return
        self.is_answered = True
        if error is None:
            self.answer(ResponseCode.SUCCESS, None)
        else:
            self.answer(ResponseCode.SYSTEM_ERROR, str(error))


class Acks:
    """All responses that wait for one store.

    They are confirmed in the order of their offsets, so the responses between two sweeps form a bucket that
    is done when its last one is sent: waiting costs an append to a list and does not read the clock.
    """

    def __init__(self, store: ConfirmingStore, clock: Clock, timeout_ms: int, *, may_wait: bool) -> None:
        """`may_wait`: confirmation may take longer than a turn (sync flush), so time-outs are needed."""
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._may_wait = may_wait
        self._bucket: list[PendingAck] = []
        self._buckets: deque[tuple[int, list[PendingAck]]] = deque()

    def __len__(self) -> int:
        buckets = [self._bucket, *(bucket for _, bucket in self._buckets)]
        return sum(not ack.is_answered for bucket in buckets for ack in bucket)

    def when_confirmed(self, offset: int, ack: PendingAck) -> None:
        """Send the response when the log up to `offset` is confirmed."""
        if self._may_wait:
            self._bucket.append(ack)
        self._store.on_confirmed(offset, ack)

    def sweep(self) -> None:
        """Send the responses that have waited too long; call a few times a second."""
        now_ns = self._clock.monotonic_ns()
        if self._bucket:
            self._buckets.append((now_ns + self._timeout_ms * NS_PER_MS, self._bucket))
            self._bucket = []
        while self._buckets:
            deadline_ns, bucket = self._buckets[0]
            if not bucket[-1].is_answered:
                if deadline_ns > now_ns:
                    return
                self._time_out(bucket)
            self._buckets.popleft()

    def _time_out(self, bucket: list[PendingAck]) -> None:
        remark = f"stored, but not flushed within sync_flush_timeout_ms {self._timeout_ms}: the disk is slow"
        for ack in bucket:
            if not ack.is_answered:
                ack.is_answered = True
                ack.answer(ResponseCode.FLUSH_DISK_TIMEOUT, remark)

"""Acks: delays the responses to sends until their messages are confirmed (docs/design.md#invariant-2).

The store confirms an append in the same turn under async flush, and after the next flush under sync flush. If
that takes longer than `sync_flush_timeout_ms`, the response is FLUSH_DISK_TIMEOUT: the message is stored but
not yet durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from actors.remoting.codes import ResponseCode
from store.clock import NS_PER_MS, Clock
from store.store_errors import StoreError


class ConfirmingStore(Protocol):
    """The method of `MessageStore` that `Acks` uses."""

    def on_confirmed(
        self, offset: int, callback: Callable[[StoreError | None], None], messages: int = 1
    ) -> None:
        """Call `callback(None)` when the log is confirmed up to `offset`, or `callback(error)`."""


class PendingAck:
    """A response that waits until an append is confirmed.

    Subclasses implement `respond`. They drop their references afterwards, because `Acks` keeps the object
    until all responses of its bucket are sent.
    """

    __slots__ = ("is_done",)

    def __init__(self) -> None:
        self.is_done = False

    def respond(self, code: ResponseCode, remark: str | None) -> None:
        """Send the response with this code and remark; called once."""
        raise NotImplementedError

    def __call__(self, error: StoreError | None) -> None:
        """Respond with SUCCESS, or with SYSTEM_ERROR and the error; does nothing after a time-out."""
        if self.is_done:
            return
        self.is_done = True
        if error is None:
            self.respond(ResponseCode.SUCCESS, None)
        else:
            self.respond(ResponseCode.SYSTEM_ERROR, str(error))


class Acks:
    """The pending responses of one store.

    Appends are confirmed in the order of their offsets. So the responses between two sweeps form a bucket
    that is done when its last response is sent, and a send only appends to a list and does not read the
    clock.
    """

    def __init__(self, store: ConfirmingStore, clock: Clock, timeout_ms: int, *, may_wait: bool) -> None:
        """Create the object.

        Args:
            store: confirms the appends.
            clock: for the time-outs.
            timeout_ms: how long a response waits before it is sent with FLUSH_DISK_TIMEOUT.
            may_wait: True if confirmation may take longer than a turn (sync flush), so time-outs are needed.
        """
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._may_wait = may_wait
        self._bucket: list[PendingAck] = []
        self._buckets: deque[tuple[int, list[PendingAck]]] = deque()

    def __len__(self) -> int:
        buckets = [self._bucket, *(bucket for _, bucket in self._buckets)]
        return sum(not ack.is_done for bucket in buckets for ack in bucket)

    def when_confirmed(self, offset: int, ack: PendingAck, messages: int = 1) -> None:
        """Send the response `ack` to `messages` sends when the log is confirmed up to `offset`."""
        if self._may_wait:
            self._bucket.append(ack)
        self._store.on_confirmed(offset, ack, messages)

    def sweep(self) -> None:
        """Respond FLUSH_DISK_TIMEOUT to sends that have waited too long; called a few times per second."""
        now_ns = self._clock.monotonic_ns()
        if self._bucket:
            self._buckets.append((now_ns + self._timeout_ms * NS_PER_MS, self._bucket))
            self._bucket = []
        while self._buckets:
            deadline_ns, bucket = self._buckets[0]
            if not bucket[-1].is_done:
                if deadline_ns > now_ns:
                    return
                self._time_out(bucket)
            self._buckets.popleft()

    def _time_out(self, bucket: list[PendingAck]) -> None:
        remark = f"stored, but not flushed within sync_flush_timeout_ms {self._timeout_ms}: the disk is slow"
        for ack in bucket:
            if not ack.is_done:
                ack.is_done = True
                ack.respond(ResponseCode.FLUSH_DISK_TIMEOUT, remark)

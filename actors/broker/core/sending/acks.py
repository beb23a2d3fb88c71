"""Acks: delays the responses to sends until their messages are confirmed (docs/design.md#invariant-2).

The store confirms an append in the same turn under async flush, after the next flush under sync flush, and
after the acknowledgements of slaves with `replication: sync`. Each of these has a limit. If it takes longer,
the response names what is late, FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT: the message is stored, but not
confirmed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from actors.wire.codes import ResponseCode
from store.common.clock import NS_PER_MS, Clock
from store.message_store import MessageStore
from store.store_errors import StoreError


class AckLimit(NamedTuple):
    """One of the things that a confirmation waits for, and the response if it takes too long."""

    timeout_ms: int
    position: Callable[[], int]
    """Returns the CommitLog offset before which it has happened."""
    code: ResponseCode
    remark: str


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


class _Bucket(NamedTuple):
    since_ns: int
    end: int
    """CommitLog offset at which the last append of the bucket ends."""
    acks: list[PendingAck]


class Acks:
    """The pending responses of one store.

    Appends are confirmed in the order of their offsets. So the responses between two sweeps form a bucket
    that is done when its last response is sent, and a send only appends to a list and does not read the
    clock.
    """

    def __init__(self, store: MessageStore, clock: Clock, limits: Sequence[AckLimit]) -> None:
        """Create the object.

        Args:
            store: confirms the appends.
            clock: for the time-outs.
            limits: what confirmations wait for; if several are late, the response is that of the first one.
                Empty if the store confirms all appends within a turn.
        """
        self._store = store
        self._clock = clock
        self._limits = limits
        self._may_wait = bool(limits)
        self._end = 0
        self._bucket: list[PendingAck] = []
        self._buckets: deque[_Bucket] = deque()

    def __len__(self) -> int:
        buckets = [self._bucket, *(each.acks for each in self._buckets)]
        return sum(not ack.is_done for bucket in buckets for ack in bucket)

    @property
    def is_waiting(self) -> bool:
        """True if `sweep` may have something to do."""
        return bool(self._bucket or self._buckets)

    def when_confirmed(self, offset: int, ack: PendingAck, messages: int = 1) -> None:
        """Send the response `ack` to `messages` sends when the log is confirmed up to `offset`."""
        if self._may_wait:
            self._end = offset
            self._bucket.append(ack)
        self._store.on_confirmed(offset, ack, messages)

    def sweep(self) -> None:
        """Respond to sends that have waited too long; called a few times per second."""
        now_ns = self._clock.monotonic_ns()
        if self._bucket:
            self._buckets.append(_Bucket(now_ns, self._end, self._bucket))
            self._bucket = []
        while self._buckets:
            bucket = self._buckets[0]
            if not bucket.acks[-1].is_done:
                exceeded = self._exceeded(bucket, (now_ns - bucket.since_ns) // NS_PER_MS)
                if exceeded is None:
                    return
                _time_out(bucket.acks, exceeded)
            self._buckets.popleft()

    def _exceeded(self, bucket: _Bucket, waited_ms: int) -> AckLimit | None:
        for limit in self._limits:
            if waited_ms >= limit.timeout_ms and limit.position() < bucket.end:
                return limit
        return None


def _time_out(acks: Sequence[PendingAck], exceeded: AckLimit) -> None:
    for ack in acks:
        if not ack.is_done:
            ack.is_done = True
            ack.respond(exceeded.code, exceeded.remark)

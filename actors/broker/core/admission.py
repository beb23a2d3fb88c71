"""Admission: the limits on the load that a broker accepts.

A request over a limit is refused with RocketMQ's SYSTEM_BUSY (producers then try another broker). The remark
names the cause and the numbers:

    sends that wait for the disk              send_queue_capacity     [OVERLOAD]
    requests of one connection                max_pending_requests    [OVERLOAD]
    unread response bytes of all connections  max_unread_bytes        [OVERLOAD]   new and held pulls
    send requests per second                  max_sends_per_s         [OVERLOAD]
    time that sends waited on a stalled loop  os_page_cache_busy_ms   [PCBUSY_CLEAN_QUEUE]

Reads that wait for a thread (`off_loop`) and held requests (`wait_registry`) have their own limits. Whether
the store accepts messages at all is decided by `store.writing.send_gate`.
"""

from __future__ import annotations

from actors.broker.broker_settings import BrokerSettings
from actors.transport.connection import Connection
from actors.transport.request import Cost, RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.message_store import MessageStore

BURST_S = 0.1
"""Sends of this time, at the rate `max_sends_per_s`, may arrive at once."""

NS_PER_S = 1_000_000_000

_BUSY = "[OVERLOAD]system busy, start flow control for a while: "


class Admission:
    """A step of the request chain that raises Refused for requests over a limit."""

    def __init__(self, settings: BrokerSettings, store: MessageStore, clock: Clock) -> None:
        self._settings = settings
        self._positions = store.positions
        self._clock = clock
        self.stalled_ms = 0
        """How long the loop was blocked before this turn, if that is too long."""
        # Since `_behind_since_ns`, `confirmed` is below `_behind_at`: the oldest send has waited that long.
        self._behind_at = 0
        self._behind_since_ns = 0
        self._waiting = 0  # sends that waited at the end of the last turn
        self._send_credit = 0.0  # sends that may be accepted now; grows by `max_sends_per_s`
        self._credit_ns = clock.monotonic_ns()
        self.refused = 0

    def note_lag(self, lag_ns: int) -> None:
        """Record how late the loop runs: requests read in this turn have waited up to `lag_ns`."""
        self.stalled_ms = (
            lag_ns // NS_PER_MS if lag_ns >= self._settings.os_page_cache_busy_ms * NS_PER_MS else 0
        )

    def end_turn(self) -> None:
        """Clear the recorded lag and count the waiting sends; called after the turn's responses are sent."""
        self.stalled_ms = 0
        positions = self._positions
        self._waiting = positions.waiting
        if self._waiting and positions.confirmed >= self._behind_at:
            self._behind_at = positions.written
            self._behind_since_ns = self._clock.monotonic_ns()

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused if the request exceeds a limit."""
        connection, cost = context.connection, context.row.cost
        if connection.pending >= self._settings.max_pending_requests:
            raise self._refusal(
                f"{connection.pending:,} requests of this connection have no response yet "
                f"(max_pending_requests {self._settings.max_pending_requests:,}): wait for responses, "
                "or raise max_pending_requests on the broker"
            )
        if cost is Cost.SEND:
            self._admit_send()
        elif cost is Cost.PULL:
            self.admit_response(connection)

    def plain_sends_max(self, connection: Connection) -> int:
        """Return how many sends of a connection are accepted now; 0 if each needs its own decision."""
        settings = self._settings
        if self.stalled_ms or settings.max_sends_per_s or self._waiting >= settings.send_queue_capacity:
            return 0
        return settings.max_pending_requests - connection.pending

    def admit_response(self, connection: Connection) -> None:
        """Raise Refused for a new or held pull if clients leave too many response bytes unread."""
        unread_bytes = connection.hub.unread_bytes
        if unread_bytes > self._settings.max_unread_bytes:
            raise self._refusal(
                f"{unread_bytes:,} bytes of responses wait for clients that do not read them "
                f"(max_unread_bytes {self._settings.max_unread_bytes:,}): read faster, "
                "or raise max_unread_bytes on the broker"
            )

    def _admit_send(self) -> None:
        if self.stalled_ms:
            self.refused += 1
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{self.stalled_ms}ms, size of queue: {self._waiting}: the broker stalled "
                f"(os_page_cache_busy_ms {self._settings.os_page_cache_busy_ms}); a slow disk, too little "
                "memory or too few processors can cause this",
            )
        capacity = self._settings.send_queue_capacity
        if self._waiting >= capacity:
            behind_bytes = self._positions.written - self._positions.confirmed
            waited_ms = (self._clock.monotonic_ns() - self._behind_since_ns) // NS_PER_MS
            raise self._refusal(
                f"{self._waiting:,} sends wait for the disk (send_queue_capacity {capacity:,}), "
                f"which is {behind_bytes:,} bytes behind, period in queue: {waited_ms}ms"
            )

        if self._settings.max_sends_per_s:
            self._admit_by_rate(self._settings.max_sends_per_s)

    def _admit_by_rate(self, limit_per_s: int) -> None:
        now_ns = self._clock.monotonic_ns()
        grown = self._send_credit + (now_ns - self._credit_ns) * limit_per_s / NS_PER_S
        self._send_credit = min(grown, max(limit_per_s * BURST_S, 1))
        self._credit_ns = now_ns
        if self._send_credit < 1:
            raise self._refusal(
                f"more than {limit_per_s:,} send requests per second (max_sends_per_s {limit_per_s:,}): "
                "send less, add brokers, or raise max_sends_per_s on the broker"
            )
        self._send_credit -= 1

    def _refusal(self, cause: str) -> Refused:
        self.refused += 1
        return Refused(ResponseCode.SYSTEM_BUSY, _BUSY + cause)

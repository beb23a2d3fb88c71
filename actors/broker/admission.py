"""Admission: what a broker takes on, and how it says that it takes no more.

Each bound is answered with RocketMQ's SYSTEM_BUSY (producers then try another broker) and a remark that names
the cause and the numbers:

    sends that wait for the disk           send_queue_capacity     [OVERLOAD]
    requests of one connection             max_pending_requests    [OVERLOAD]
    answers that all peers leave unread    max_unread_bytes        [OVERLOAD]   pulls are refused, and
                                                                                so are those that waited
    sends that waited while the loop hung  os_page_cache_busy_ms   [PCBUSY_CLEAN_QUEUE]

What waits for a thread has its own bounds (`off_loop`), and so have held requests (`wait_registry`).
"""

from __future__ import annotations

from actors.broker.broker_settings import BrokerSettings
from actors.remoting.codes import ResponseCode
from actors.remoting.connection import Connection
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import Cost, RequestContext
from store.clock import NS_PER_MS, Clock
from store.message_store import MessageStore

_BUSY = "[OVERLOAD]system busy, start flow control for a while: "


class Admission:
    """A step of the chain: lets a request pass, or raises `Refused`."""

    def __init__(self, settings: BrokerSettings, store: MessageStore, clock: Clock) -> None:
        self._settings = settings
        self._positions = store.positions
        self._clock = clock
        self._hung_ms = 0
        # Since when the disk has not come to this place: the oldest send has waited so long at least.
        self._behind_at = 0
        self._behind_since_ns = 0
        self._waiting = 0  # sends, at the last turn's end: those of one turn wait for nothing but that
        self.refused = 0

    def note_lag(self, lag_ns: int) -> None:
        """The loop ran so late: what it reads in this turn has waited so long at most."""
        self._hung_ms = (
            lag_ns // NS_PER_MS if lag_ns >= self._settings.os_page_cache_busy_ms * NS_PER_MS else 0
        )

    def end_turn(self) -> None:
        """What is read from now on has not waited; call when the turn's answers have been given."""
        self._hung_ms = 0
        positions = self._positions
        self._waiting = positions.waiting
        if self._waiting and positions.confirmed >= self._behind_at:
            self._behind_at = positions.written
            self._behind_since_ns = self._clock.monotonic_ns()

    def __call__(self, context: RequestContext) -> None:
        """Let the request pass or raise `Refused`."""
        connection, cost = context.connection, context.row.cost
        if connection.pending >= self._settings.max_pending_requests:
            raise self._refusal(
                f"{connection.pending:,} requests of this connection have no answer yet "
                f"(max_pending_requests {self._settings.max_pending_requests:,})"
            )
        if cost is Cost.SEND:
            self._admit_send()
        elif cost is Cost.PULL:
            self.admit_answer(connection)

    def admit_answer(self, connection: Connection) -> None:
        """Let messages be read for a pull, a new one or one that has waited. Raises `Refused`."""
        unread_bytes = connection.hub.unread_bytes
        if unread_bytes > self._settings.max_unread_bytes:
            raise self._refusal(
                f"{unread_bytes:,} bytes of answers wait for peers that do not read them "
                f"(max_unread_bytes {self._settings.max_unread_bytes:,})"
            )

    def _admit_send(self) -> None:
        if self._hung_ms:
            self.refused += 1
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{self._hung_ms}ms, size of queue: {self._waiting}: the broker stood still "
                f"(os_page_cache_busy_ms {self._settings.os_page_cache_busy_ms}), which a slow disk, too "
                "little memory or too few processors may do",
            )
        capacity = self._settings.send_queue_capacity
        if self._waiting >= capacity:
            behind_bytes = self._positions.written - self._positions.confirmed
            waited_ms = (self._clock.monotonic_ns() - self._behind_since_ns) // NS_PER_MS
            raise self._refusal(
                f"{self._waiting:,} sends wait for the disk (send_queue_capacity {capacity:,}), "
                f"which is {behind_bytes:,} bytes behind, period in queue: {waited_ms}ms"
            )

    def _refusal(self, cause: str) -> Refused:
        self.refused += 1
        return Refused(ResponseCode.SYSTEM_BUSY, _BUSY + cause)

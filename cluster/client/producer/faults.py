"""Choice of the broker for sends that may use any queue (RocketMQ MQFaultStrategy, LatencyFaultTolerance).

Brokers are used in turn. With `send_latency_fault_enable`, brokers that were slow or failed are avoided for
some time, by the table of RocketMQ 5.3.3:

    a send took at least   50   100    550   1,800   3,000    5,000   15,000 ms
    avoid the broker for    0     0  2,000   5,000   6,000   10,000   30,000 ms

A failed send counts as a send of 10,000 ms. If all brokers are to be avoided, the reachable ones are used; if
no broker is reachable, all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.client.errors import BrokerUnreachable, ClientError
from cluster.client.selectors import RoundRobin
from store.common.clock import NS_PER_MS, Clock
from store.message.message_queue import MessageQueue

LATENCY_MAX_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
NOT_AVAILABLE_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
FAILED_COUNTS_AS_MS = 10_000


def not_available_ms(latency_ms: float) -> int:
    """Return how long a broker is avoided, in milliseconds, after a send that took `latency_ms`."""
    for least_ms, avoided_ms in zip(reversed(LATENCY_MAX_MS), reversed(NOT_AVAILABLE_MS), strict=True):
        if latency_ms >= least_ms:
            return avoided_ms
    return 0


@dataclass(slots=True)
class FaultItem:
    """State of one broker: its last latency, the end of its avoidance and whether it is reachable."""

    latency_ms: float
    available_from_ms: int
    is_reachable: bool


class LatencyFaultTolerance:
    """Table of the brokers to avoid. The caller passes the time, in monotonic milliseconds."""

    def __init__(self) -> None:
        self._items: dict[str, FaultItem] = {}

    def update(self, broker_name: str, latency_ms: float, now_ms: int, *, is_reachable: bool) -> None:
        """Record a send to the broker: its latency, or FAILED_COUNTS_AS_MS if it failed."""
        available_from_ms = now_ms + not_available_ms(latency_ms)
        self._items[broker_name] = FaultItem(latency_ms, available_from_ms, is_reachable)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Return True unless the broker is to be avoided at `now_ms`."""
        item = self._items.get(broker_name)
        return item is None or now_ms >= item.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Return True unless the last send found the broker unreachable."""
        item = self._items.get(broker_name)
        return item is None or item.is_reachable


class MQFaultStrategy:
    """Chooses the queue of sends that may use any queue. Thread-safe."""

    def __init__(self, turns: RoundRobin, clock: Clock, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self.faults = LatencyFaultTolerance()
        self._turns = turns
        self._clock = clock

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return self._clock.monotonic_ns() // NS_PER_MS

    def choose(self, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """Return the next of `queues`, which must not be empty.

        Queues of `avoid_broker` are skipped if another broker has queues.
        """
        if not self.is_enabled:
            return self._turns.choose(queues, avoid_broker)
        now_ms, faults = self.now_ms(), self.faults
        others = [queue for queue in queues if queue.broker_name != avoid_broker]
        good = [queue for queue in others if faults.is_available(queue.broker_name, now_ms)]
        reachable = good or [queue for queue in others if faults.is_reachable(queue.broker_name)]
        return self._turns.choose(reachable or queues)

    def record_success(self, broker_name: str, started_ms: int) -> None:
        """Record a successful send that began at `started_ms`."""
        if not self.is_enabled:
            return
        now_ms = self.now_ms()
        self.faults.update(broker_name, now_ms - started_ms, now_ms, is_reachable=True)

    def record_failure(self, broker_name: str, error: ClientError) -> None:
        """Record a failed send. Errors that are not retriable are ignored: any broker would return them."""
        if self.is_enabled and error.retriable:
            is_reachable = not isinstance(error, BrokerUnreachable)
            self.faults.update(broker_name, FAILED_COUNTS_AS_MS, self.now_ms(), is_reachable=is_reachable)

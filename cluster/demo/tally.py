"""Records every delivery, and counts lost, duplicate and reordered messages at the end.

Messages are identified by UNIQ_KEY. A second delivery of a UNIQ_KEY is a duplicate: either the message was
stored twice (the response to a send was lost) or delivered twice (a consumer could not commit).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from cluster.demo.flights import Delays


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one flight, with the queue and offset of its message."""

    uniq_key: str
    row: int
    aircraft: str
    carrier: str
    delay_minutes: float | None
    queue: tuple[str, int]
    queue_offset: int


@dataclass(frozen=True)
class Verdict:
    """The counts of one run. `lost`, `disordered` and `scattered` must be 0; duplicates are allowed."""

    seen: int
    duplicates: int
    lost: int
    disordered: int
    scattered: int
    delays: dict[str, Delays]


class Tally:
    """Collects deliveries from the consumers' threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[str, Delivery] = {}
        self._deliveries = 0
        self._places: set[tuple[tuple[str, int], int]] = set()

    @property
    def distinct(self) -> int:
        """The number of different flights delivered."""
        return len(self._first)

    @property
    def places(self) -> int:
        """The number of different (queue, offset) pairs delivered."""
        return len(self._places)

    def add(self, delivery: Delivery) -> bool:
        """Record a delivery; return True if it is the first one of its flight."""
        with self._lock:
            self._deliveries += 1
            self._places.add((delivery.queue, delivery.queue_offset))
            known = self._first.get(delivery.uniq_key)
            # A flight stored twice counts at its lower offset, in whatever order both were delivered.
            if known is None or known.queue_offset > delivery.queue_offset:
                self._first[delivery.uniq_key] = delivery
            return known is None

    def judge(self, sent: int) -> Verdict:
        """Count received, duplicate, lost and reordered flights; flights 0 … `sent` - 1 were sent."""
        with self._lock:
            first = list(self._first.values())
            deliveries = self._deliveries
        delays: dict[str, Delays] = {}
        for each in first:
            delays.setdefault(each.carrier, Delays()).add(each.delay_minutes)
        rows = {each.row for each in first}
        return Verdict(
            seen=len(first),
            duplicates=deliveries - len(first),
            lost=sent - len(rows & set(range(sent))),
            disordered=_disordered(first),
            scattered=_scattered(first),
            delays=delays,
        )


def _disordered(first: list[Delivery]) -> int:
    """Count flights that have a higher offset than a later flight of the same aircraft."""
    latest: dict[str, int] = {}
    count = 0
    for each in sorted(first, key=lambda delivery: (delivery.queue, delivery.queue_offset)):
        if latest.get(each.aircraft, -1) > each.row:
            count += 1
        else:
            latest[each.aircraft] = each.row
    return count


def _scattered(first: list[Delivery]) -> int:
    """Count aircraft whose flights are in more than one queue."""
    homes: dict[str, set[tuple[str, int]]] = {}
    for each in first:
        homes.setdefault(each.aircraft, set()).add(each.queue)
    return sum(len(queues) > 1 for queues in homes.values())

"""Records every delivery, and counts lost, duplicate and reordered flights at the end.

A flight is identified by the UNIQ_KEY of its message. A second delivery of a UNIQ_KEY is a duplicate. Either
the message was stored twice, because the response to a send was lost, or it was delivered twice, because a
consumer could not commit its offset.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from cluster.demo.flights import Delays


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one flight.

    Attributes:
        uniq_key: UNIQ_KEY of the message.
        row: Row of the flight in the CSV file. Flights are sent in this order.
        aircraft: Tail number, or carrier and flight number if it is unknown.
        carrier: Code of the airline.
        delay_minutes: Arrival delay; None if the flight has none.
        queue: Broker name and queue id of the message.
        queue_offset: Offset of the message in its queue.
    """

    uniq_key: str
    row: int
    aircraft: str
    carrier: str
    delay_minutes: float | None
    queue: tuple[str, int]
    queue_offset: int


@dataclass(frozen=True)
class Verdict:
    """The delivery statistics of one run. `lost`, `disordered` and `scattered` must be 0.

    Attributes:
        seen: Number of different flights received.
        duplicates: Number of further deliveries of these flights. Delivery is at least once.
        lost: Number of sent flights that were not received.
        disordered: Number of flights that are stored after a later flight of the same aircraft.
        scattered: Number of aircraft whose flights are in more than one queue.
        delays: Delays of the received flights by carrier.
    """

    seen: int
    duplicates: int
    lost: int
    disordered: int
    scattered: int
    delays: dict[str, Delays]


class Tally:
    """Collects the deliveries of all consumers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[str, Delivery] = {}
        self._deliveries = 0
        self._places: set[tuple[tuple[str, int], int]] = set()

    @property
    def distinct(self) -> int:
        """Return the number of different flights delivered."""
        return len(self._first)

    @property
    def places(self) -> int:
        """Return the number of different stored messages delivered, by queue and offset."""
        return len(self._places)

    def add(self, delivery: Delivery) -> bool:
        """Record a delivery. Return True if it is the first delivery of its flight."""
        with self._lock:
            self._deliveries += 1
            self._places.add((delivery.queue, delivery.queue_offset))
            known = self._first.get(delivery.uniq_key)
            # If a flight is stored twice, its lower offset counts for the order, even if delivered later.
            if known is None or known.queue_offset > delivery.queue_offset:
                self._first[delivery.uniq_key] = delivery
            return known is None

    def judge(self, sent: int) -> Verdict:
        """Return the delivery statistics, given that the flights of the rows 0 to `sent` - 1 were sent."""
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
    """Return the number of flights whose offset is higher than that of a later flight of the aircraft."""
    latest: dict[str, int] = {}
    count = 0
    for each in sorted(first, key=lambda delivery: (delivery.queue, delivery.queue_offset)):
        if latest.get(each.aircraft, -1) > each.row:
            count += 1
        else:
            latest[each.aircraft] = each.row
    return count


def _scattered(first: list[Delivery]) -> int:
    """Return the number of aircraft whose flights are in more than one queue."""
    homes: dict[str, set[tuple[str, int]]] = {}
    for each in first:
        homes.setdefault(each.aircraft, set()).add(each.queue)
    return sum(len(queues) > 1 for queues in homes.values())

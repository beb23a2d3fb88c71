"""Records every delivery, and counts lost, duplicate and reordered flights at the end.

A flight is identified by the UNIQ_KEY of its message. A second delivery of a UNIQ_KEY is a duplicate. Either
the message was stored twice, because the response to a send was lost, or it was delivered twice, because a
consumer could not commit its offset.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from cluster.lab.demo.flights import Delays, delays_by_carrier


class FlightDelivery(NamedTuple):
    """One delivery of one flight."""

    uniq_key: str
    row: int
    """Row of the flight in the CSV file. Flights are sent in this order."""
    aircraft: str
    """Tail number, or carrier and flight number if it is unknown."""
    carrier: str
    arr_delay: float | None
    """Arrival delay in minutes; None if the flight has none."""
    queue: tuple[str, int]
    """Broker name and queue id of the message."""
    queue_offset: int


class FlightVerdict(NamedTuple):
    """The delivery statistics of one run. `lost`, `disordered` and `scattered` must be 0."""

    seen: int
    """Number of different flights received."""
    duplicates: int
    """Number of further deliveries of these flights. Delivery is at least once."""
    lost: int
    """Number of sent flights that were not received."""
    disordered: int
    """Number of flights that are stored after a later flight of the same aircraft."""
    scattered: int
    """Number of aircraft whose flights are in more than one queue."""
    delays: dict[str, Delays]
    """Delays of the received flights by carrier."""


class FlightTally:
    """Collects the deliveries of all consumers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deliveries: list[FlightDelivery] = []
        self._flights: set[str] = set()
        self._places: set[tuple[tuple[str, int], int]] = set()

    @property
    def distinct(self) -> int:
        """Return the number of different flights delivered."""
        return len(self._flights)

    @property
    def places(self) -> int:
        """Return the number of different stored messages delivered, by queue and offset."""
        return len(self._places)

    def add(self, delivery: FlightDelivery) -> None:
        """Record a delivery."""
        with self._lock:
            self._deliveries.append(delivery)
            self._flights.add(delivery.uniq_key)
            self._places.add((delivery.queue, delivery.queue_offset))

    def judge(self, sent: int) -> FlightVerdict:
        """Return the delivery statistics, given that the flights of the rows 0 to `sent` - 1 were sent."""
        import pandas as pd

        with self._lock:
            frame = pd.DataFrame(self._deliveries, columns=list(FlightDelivery._fields))
        frame = frame.astype({"row": int, "arr_delay": float})  # also if it is empty
        # If a flight is stored twice, its lower offset counts for the order, even if delivered later.
        first = frame.sort_values(["queue", "queue_offset"]).drop_duplicates("uniq_key")
        of_aircraft = first.groupby("aircraft")
        return FlightVerdict(
            seen=len(first),
            duplicates=len(frame) - len(first),
            lost=sent - first["row"][first["row"] < sent].nunique(),
            disordered=int((first["row"] < of_aircraft["row"].cummax()).sum()),
            scattered=int((of_aircraft["queue"].nunique() > 1).sum()),
            delays=delays_by_carrier(first),
        )

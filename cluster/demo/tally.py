"""What the consumers saw: every delivery is noted, and judged when all is over.

A flight is known by its message's UNIQ_KEY: a delivery of one that was seen before is a duplicate, whether it
was stored twice (a send whose answer was lost) or delivered twice (a consumer that could not commit).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from cluster.demo.flights import Delays


@dataclass(frozen=True, slots=True)
class Sighting:
    """One delivery of one flight: what it is, and where its message stands."""

    uniq_key: str
    row: int
    aircraft: str
    carrier: str
    delay_minutes: float | None
    queue: tuple[str, int]
    queue_offset: int


@dataclass(frozen=True)
class Verdict:
    """What is wrong, if anything: `lost` and `disordered` must be 0; duplicates are allowed, and counted."""

    seen: int
    duplicates: int
    lost: int
    disordered: int
    scattered: int
    delays: dict[str, Delays]


class Tally:
    """Collects sightings from the consumers' threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[str, Sighting] = {}
        self._deliveries = 0
        self._places: set[tuple[tuple[str, int], int]] = set()

    @property
    def distinct(self) -> int:
        """How many different flights have been seen."""
        return len(self._first)

    @property
    def places(self) -> int:
        """How many different places in queues have been delivered."""
        return len(self._places)

    def add(self, sighting: Sighting) -> bool:
        """Note a delivery; says whether its flight is seen for the first time."""
        with self._lock:
            self._deliveries += 1
            self._places.add((sighting.queue, sighting.queue_offset))
            known = self._first.get(sighting.uniq_key)
            # Of a flight that was stored twice the earlier place counts, however the two were delivered.
            if known is None or known.queue_offset > sighting.queue_offset:
                self._first[sighting.uniq_key] = sighting
            return known is None

    def judge(self, sent: int) -> Verdict:
        """Say what became of the flights 0 … `sent` - 1."""
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


def _disordered(first: list[Sighting]) -> int:
    """Flights that stand in their queue behind a later flight of the same aircraft."""
    latest: dict[str, int] = {}
    count = 0
    for each in sorted(first, key=lambda sighting: (sighting.queue, sighting.queue_offset)):
        if latest.get(each.aircraft, -1) > each.row:
            count += 1
        else:
            latest[each.aircraft] = each.row
    return count


def _scattered(first: list[Sighting]) -> int:
    """Aircraft whose flights stand in more than one queue."""
    homes: dict[str, set[tuple[str, int]]] = {}
    for each in first:
        homes.setdefault(each.aircraft, set()).add(each.queue)
    return sum(len(queues) > 1 for queues in homes.values())

"""The tally of the demo detects lost, reordered, scattered and duplicate flights."""

from __future__ import annotations

from cluster.lab.demo.flights import Delays
from cluster.lab.demo.tally import FlightDelivery, FlightTally


def flight(
    row: int, offset: int, *, aircraft: str = "N1", queue: int = 0, delay: float | None = 5.0
) -> FlightDelivery:
    return FlightDelivery(f"id-{row}", row, aircraft, "UA", delay, ("broker-a", queue), offset)


def test_complete_ordered_flights_have_no_faults() -> None:
    tally = FlightTally()
    for each in (flight(0, 0), flight(1, 1, delay=None), flight(2, 2, delay=7.0)):
        tally.add(each)
    assert tally.distinct == 3
    verdict = tally.judge(3)
    assert (verdict.seen, verdict.duplicates, verdict.lost, verdict.disordered, verdict.scattered) == (
        3,
        0,
        0,
        0,
        0,
    )
    assert verdict.delays == {"UA": Delays(3, 2, 12.0)}


def test_missing_flight_is_lost() -> None:
    tally = FlightTally()
    tally.add(flight(0, 0))
    assert tally.judge(2).lost == 1


def test_all_flights_are_lost_if_none_is_delivered() -> None:
    verdict = FlightTally().judge(2)
    assert (verdict.seen, verdict.lost, verdict.disordered, verdict.scattered, verdict.delays) == (
        0,
        2,
        0,
        0,
        {},
    )


def test_flight_stored_or_delivered_twice_is_a_duplicate() -> None:
    tally = FlightTally()
    for offset in (0, 1, 1):  # stored at offsets 0 and 1, the second copy delivered twice
        tally.add(flight(0, offset))
    verdict = tally.judge(1)
    assert (verdict.seen, verdict.duplicates, tally.places, verdict.lost) == (1, 2, 2, 0)
    assert verdict.delays["UA"].flights == 1


def test_order_is_that_of_queue_offsets_not_of_deliveries() -> None:
    tally = FlightTally()
    for row in (2, 0, 1):
        tally.add(flight(row, row))
    assert tally.judge(3).disordered == 0


def test_flight_stored_after_later_flight_of_aircraft_is_disordered() -> None:
    tally = FlightTally()
    tally.add(flight(1, 0))
    tally.add(flight(0, 1))
    tally.add(flight(5, 2, aircraft="N2"))
    assert tally.judge(6).disordered == 1


def test_duplicate_of_earlier_flight_is_not_disordered() -> None:
    tally = FlightTally()
    for row, offset in ((0, 0), (1, 1), (0, 2), (1, 3)):  # the client retried a batch
        tally.add(flight(row, offset))
    assert tally.judge(2).disordered == 0


def test_aircraft_in_two_queues_is_scattered() -> None:
    tally = FlightTally()
    tally.add(flight(0, 0))
    tally.add(flight(1, 0, queue=1))
    assert tally.judge(2).scattered == 1

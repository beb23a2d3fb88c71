"""The demo's judgement: what is lost, out of order, scattered or seen twice must not go unseen."""

from __future__ import annotations

from cluster.demo.flights import Delays
from cluster.demo.tally import Delivery, Tally


def flight(
    row: int, offset: int, *, aircraft: str = "N1", queue: int = 0, delay: float | None = 5.0
) -> Delivery:
    return Delivery(f"id-{row}", row, aircraft, "UA", delay, ("broker-a", queue), offset)


def test_flights_in_order_and_complete_are_faultless() -> None:
    tally = Tally()
    assert all(
        [tally.add(flight(0, 0)), tally.add(flight(1, 1, delay=None)), tally.add(flight(2, 2, delay=7.0))]
    )
    verdict = tally.judge(3)
    assert (verdict.seen, verdict.duplicates, verdict.lost, verdict.disordered, verdict.scattered) == (
        3,
        0,
        0,
        0,
        0,
    )
    assert verdict.delays == {"UA": Delays(3, 2, 12.0)}


def test_a_missing_flight_is_lost() -> None:
    tally = Tally()
    tally.add(flight(0, 0))
    assert tally.judge(2).lost == 1


def test_a_flight_stored_or_delivered_twice_counts_once_and_as_a_duplicate() -> None:
    tally = Tally()
    for offset in (0, 1, 1):  # stored at 0 and at 1, and that at 1 delivered twice
        tally.add(flight(0, offset))
    verdict = tally.judge(1)
    assert (verdict.seen, verdict.duplicates, tally.places, verdict.lost) == (1, 2, 2, 0)
    assert verdict.delays["UA"].flights == 1


def test_the_order_is_that_of_the_queue_not_of_the_deliveries() -> None:
    tally = Tally()
    for row in (2, 0, 1):
        tally.add(flight(row, row))
    assert tally.judge(3).disordered == 0


def test_a_flight_behind_a_later_one_of_its_aircraft_is_disordered() -> None:
    tally = Tally()
    tally.add(flight(1, 0))
    tally.add(flight(0, 1))
    tally.add(flight(5, 2, aircraft="N2"))
    assert tally.judge(6).disordered == 1


def test_a_repeated_earlier_flight_is_no_disorder() -> None:
    tally = Tally()
    for row, offset in ((0, 0), (1, 1), (0, 2), (1, 3)):  # a batch that was sent again
        tally.add(flight(row, offset))
    assert tally.judge(2).disordered == 0


def test_an_aircraft_in_two_queues_is_scattered() -> None:
    tally = Tally()
    tally.add(flight(0, 0))
    tally.add(flight(1, 0, queue=1))
    assert tally.judge(2).scattered == 1

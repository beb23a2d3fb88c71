"""Times instead of offsets: the names and the rules of Spark's Kafka source, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.splits import QueueState, StorePlace
from jobs.starting_offsets import EARLIEST, LATEST
from jobs.times import (
    Times,
    check_order,
    check_strategy,
    ending_offsets,
    parse_times,
    starting_offsets,
)
from store.message.message_queue import MessageQueue

PLACE = StorePlace("127.0.0.1:10911", "/nowhere", "id", 1024, 1000)
NOW_MS = 1_735_689_600_000


def queue(queue_id: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("orders", broker, queue_id)


def state(queue_id: int, low: int, high: int) -> QueueState:
    return QueueState(queue(queue_id), low, high, PLACE)


STATES = [state(0, 10, 30), state(1, 0, 40), state(2, 7, 7)]


def parsed(timestamp: Any = None, listed: Any = None) -> Times:
    times = parse_times("starting", timestamp, listed)
    assert times is not None
    return times


@pytest.mark.parametrize("written", [NOW_MS, str(NOW_MS), datetime(2025, 1, 1, tzinfo=UTC)])
def test_one_time_stands_for_all_queues_that_hold_messages(written: Any) -> None:
    assert parsed(written).of(STATES) == {queue(0): NOW_MS, queue(1): NOW_MS}


@pytest.mark.parametrize("as_json", [True, False])
def test_times_by_queue_stand_for_those_alone(as_json: bool) -> None:
    listed = {"orders": {"broker-a": {"1": NOW_MS}}}
    assert parsed(listed=json.dumps(listed) if as_json else listed).of(STATES) == {queue(1): NOW_MS}


def test_a_time_for_all_goes_over_times_by_queue_and_neither_is_none() -> None:
    listed = {"orders": {"broker-a": {1: 5}}}
    assert parsed(NOW_MS, listed).option == "startingTimestamp"
    assert parse_times("ending", None, None) is None


def test_what_was_found_is_where_the_read_starts_and_ends() -> None:
    starting = starting_offsets(parsed(NOW_MS), STATES, {queue(0): 12, queue(1): 0}, "error")
    ending = ending_offsets(STATES, {queue(0): 20, queue(1): 99})
    assert [starting.wanted(queue(number)) for number in range(3)] == [12, 0, EARLIEST]
    assert [ending.wanted(queue(number)) for number in range(3)] == [20, 40, LATEST]


def test_queues_without_a_message_so_new_are_an_error_that_names_them_and_the_way_out() -> None:
    found = {queue(0): 12, queue(1): 40}
    with pytest.raises(OffsetsInvalid) as refused:
        starting_offsets(parsed(NOW_MS), STATES, found, "error")
    text = str(refused.value)
    assert (
        f"1 of 3 queues have no message of that time or later: orders/broker-a/1 has none since {NOW_MS}"
        in text
    )
    assert "startingOffsetsByTimestampStrategy='latest'" in text
    assert starting_offsets(parsed(NOW_MS), STATES, found, "latest").wanted(queue(1)) == 40


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("yesterday", "is no time"),
        (-1, "is no time"),
        (True, "is no time"),
        (1.5, "is no time"),
        (NOW_MS * 1000, "beyond the year 9999; give milliseconds"),
        (datetime(2025, 1, 1), "no time zone"),  # noqa: DTZ001 - that is what is tested
    ],
)
def test_what_is_no_time_is_refused_with_the_option_and_the_value(written: Any, complaint: str) -> None:
    with pytest.raises(OffsetsInvalid, match="startingTimestamp") as refused:
        parse_times("starting", written, None)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{", "is no JSON"),
        ("5", "stands for the whole"),
        ({"orders": 5}, "stands for orders"),
        ({"orders": {"broker-a": {"x": 5}}}, "queue id 'x'"),
        ({"orders": {"broker-a": {"0": "now"}}}, "orders/broker-a/0: 'now' is no time"),
    ],
)
def test_what_lists_no_times_is_refused(written: Any, complaint: str) -> None:
    with pytest.raises(OffsetsInvalid, match="endingOffsetsByTimestamp") as refused:
        parse_times("ending", None, written)
    assert complaint in str(refused.value)


def test_a_queue_that_nobody_holds_is_named() -> None:
    with pytest.raises(OffsetsInvalid, match=r"startingOffsetsByTimestamp lists .* orders/broker-z/1"):
        parsed(listed={"orders": {"broker-z": {"1": 5}}}).of(STATES)


def test_an_end_before_the_start_and_an_unknown_strategy_are_refused() -> None:
    check_order(parsed(5), parse_times("ending", 5, None))
    check_order(parsed(5), None)
    with pytest.raises(OptionInvalid, match="startingTimestamp=6 is after endingTimestamp=5"):
        check_order(parsed(6), parse_times("ending", 5, None))
    with pytest.raises(OptionInvalid, match="startingOffsetsByTimestampStrategy='newest'"):
        check_strategy("newest")

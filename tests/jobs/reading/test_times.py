"""Timestamp options: the names and rules of Spark's Kafka source, and invalid values."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.reading.splits import QueueState, StoreLocation
from jobs.reading.starting_offsets import EARLIEST, LATEST
from jobs.reading.times import (
    Times,
    check_order,
    ending_offsets,
    parse_strategy,
    parse_times,
    starting_offsets,
)
from store.message.message_queue import MessageQueue

PLACE = StoreLocation("127.0.0.1:10911", "/nowhere", "id", 1024, 1000)
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


@pytest.mark.parametrize("value", [NOW_MS, str(NOW_MS), datetime(2025, 1, 1, tzinfo=UTC)])
def test_timestamp_applies_to_all_queues_with_messages(value: Any) -> None:
    assert parsed(value).by_queue(STATES) == {queue(0): NOW_MS, queue(1): NOW_MS}


@pytest.mark.parametrize("as_json", [True, False])
def test_times_by_queue_apply_to_these_queues_only(as_json: bool) -> None:
    listed = {"orders": {"broker-a": {"1": NOW_MS}}}
    assert parsed(listed=json.dumps(listed) if as_json else listed).by_queue(STATES) == {queue(1): NOW_MS}


def test_timestamp_takes_precedence_over_times_by_queue() -> None:
    listed = {"orders": {"broker-a": {1: 5}}}
    assert parsed(NOW_MS, listed).option == "startingTimestamp"
    assert parse_times("ending", None, None) is None


def test_found_offsets_become_starting_and_ending_offsets() -> None:
    starting = starting_offsets(parsed(NOW_MS), STATES, {queue(0): 12, queue(1): 0}, "error")
    ending = ending_offsets(STATES, {queue(0): 20, queue(1): 99})
    assert [starting.wanted(queue(number)) for number in range(3)] == [12, 0, EARLIEST]
    assert [ending.wanted(queue(number)) for number in range(3)] == [20, 40, LATEST]


def test_queue_without_new_enough_message_is_refused_with_remedy() -> None:
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
    ("value", "error"),
    [
        ("yesterday", "is not a time"),
        (-1, "is not a time"),
        (True, "is not a time"),
        (1.5, "is not a time"),
        (
            NOW_MS * 1000,
            "more than a day ahead: give milliseconds since the epoch, which for that many microseconds",
        ),
        (datetime(2025, 1, 1), "no time zone"),  # noqa: DTZ001 - tests a naive datetime
    ],
)
def test_invalid_time_is_refused_with_option_and_value(value: Any, error: str) -> None:
    with pytest.raises(OffsetsInvalid, match="startingTimestamp") as refused:
        parse_times("starting", value, None)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("{", "is not valid JSON"),
        ("5", "the value is 5, which is not an object"),
        ({"orders": 5}, "the value of orders is 5"),
        ({"orders": {"broker-a": {"x": 5}}}, "queue id 'x'"),
        ({"orders": {"broker-a": {"0": "now"}}}, "orders/broker-a/0: 'now' is not a time"),
    ],
)
def test_invalid_times_by_queue_are_refused(value: Any, error: str) -> None:
    with pytest.raises(OffsetsInvalid, match="endingOffsetsByTimestamp") as refused:
        parse_times("ending", None, value)
    assert error in str(refused.value)


def test_unknown_queue_is_refused_with_its_name() -> None:
    with pytest.raises(OffsetsInvalid, match=r"startingOffsetsByTimestamp lists .* orders/broker-z/1"):
        parsed(listed={"orders": {"broker-z": {"1": NOW_MS}}}).by_queue(STATES)


def test_end_before_start_and_unknown_strategy_are_refused() -> None:
    later_ms = NOW_MS + 1
    check_order(parsed(NOW_MS), parse_times("ending", NOW_MS, None))
    check_order(parsed(NOW_MS), None)
    with pytest.raises(
        OptionInvalid, match=f"startingTimestamp={later_ms} is after endingTimestamp={NOW_MS}"
    ):
        check_order(parsed(later_ms), parse_times("ending", NOW_MS, None))
    with pytest.raises(OptionInvalid, match="startingOffsetsByTimestampStrategy='newest'"):
        parse_strategy("newest")

"""The offsets grammar: words, integers, and rocketmq-spark's nested object."""

from __future__ import annotations

import json

import pytest

from jobs.job_errors import OffsetsInvalid
from jobs.reading.starting_offsets import EARLIEST, LATEST, OffsetsOption, parse_offsets, resolve
from store.message.message_queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 1)
OTHER = MessageQueue("orders", "broker-b", 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("earliest", EARLIEST), (" latest ", LATEST), (7, 7), ("7", 7), (-1, LATEST), ("-2", EARLIEST)],
)
def test_word_or_integer_applies_to_every_queue(value: OffsetsOption, expected: int) -> None:
    offsets = parse_offsets("startingOffsets", value, EARLIEST)
    assert {offsets.wanted(QUEUE), offsets.wanted(OTHER)} == {expected}


@pytest.mark.parametrize("as_json", [True, False])
def test_object_sets_listed_queues_and_default_the_others(as_json: bool) -> None:
    nested = {"orders": {"broker-a": {"1": 23}}}
    offsets = parse_offsets("endingOffsets", json.dumps(nested) if as_json else nested, LATEST)
    assert offsets.wanted(QUEUE) == 23
    assert offsets.wanted(OTHER) == LATEST


def test_queue_ids_in_a_dict_may_be_integers() -> None:
    assert (
        parse_offsets("startingOffsets", {"orders": {"broker-a": {1: -1}}}, EARLIEST).wanted(QUEUE) == LATEST
    )


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("newest", "neither a known word nor valid JSON"),
        (-3, "only negative values are -1"),
        (True, "not an offset"),
        ('{"orders": 5}', "the value of orders is 5, which is not an object"),
        ('{"orders": {"broker-a": [1]}}', "the value of orders/broker-a is [1]"),
        ('{"orders": {"broker-a": {"x": 1}}}', "queue id 'x'"),
        ('{"orders": {"broker-a": {"1": 1.5}}}', "1.5 is not an offset"),
        ("[1]", "not an offset"),
    ],
)
def test_invalid_offset_is_refused_with_option_and_value(value: OffsetsOption, error: str) -> None:
    with pytest.raises(OffsetsInvalid, match="startingOffsets") as refused:
        parse_offsets("startingOffsets", value, EARLIEST)
    assert error in str(refused.value)


def test_unknown_queue_is_refused_with_its_name() -> None:
    offsets = parse_offsets("startingOffsets", {"orders": {"broker-z": {"1": 5}}}, EARLIEST)
    with pytest.raises(OffsetsInvalid, match="orders/broker-z/1"):
        offsets.check_known("startingOffsets", [QUEUE, OTHER])


def test_resolve_replaces_earliest_and_latest_only() -> None:
    assert [resolve(each, 10, 90) for each in (EARLIEST, LATEST, 0, 50)] == [10, 90, 0, 50]

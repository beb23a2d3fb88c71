"""The offsets grammar: words, integers, and rocketmq-spark's nested object."""

from __future__ import annotations

import json

import pytest

from jobs.job_errors import OffsetsInvalid
from jobs.starting_offsets import EARLIEST, LATEST, OffsetsOption, parse_offsets, resolve
from store.message.message_queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 1)
OTHER = MessageQueue("orders", "broker-b", 0)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("earliest", EARLIEST), (" latest ", LATEST), (7, 7), ("7", 7), (-1, LATEST), ("-2", EARLIEST)],
)
def test_a_word_or_a_number_stands_for_every_queue(written: OffsetsOption, meant: int) -> None:
    offsets = parse_offsets("startingOffsets", written, EARLIEST)
    assert {offsets.wanted(QUEUE), offsets.wanted(OTHER)} == {meant}


@pytest.mark.parametrize("as_json", [True, False])
def test_an_object_gives_each_queue_its_own_and_the_rest_the_default(as_json: bool) -> None:
    nested = {"orders": {"broker-a": {"1": 23}}}
    offsets = parse_offsets("endingOffsets", json.dumps(nested) if as_json else nested, LATEST)
    assert offsets.wanted(QUEUE) == 23
    assert offsets.wanted(OTHER) == LATEST


def test_integers_may_be_queue_ids_of_a_dict() -> None:
    assert (
        parse_offsets("startingOffsets", {"orders": {"broker-a": {1: -1}}}, EARLIEST).wanted(QUEUE) == LATEST
    )


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("newest", "neither a word nor JSON"),
        (-3, "only -1"),
        (True, "no offset"),
        ('{"orders": 5}', "stands for orders, an object is wanted"),
        ('{"orders": {"broker-a": [1]}}', "stands for orders/broker-a"),
        ('{"orders": {"broker-a": {"x": 1}}}', "queue id 'x'"),
        ('{"orders": {"broker-a": {"1": 1.5}}}', "1.5 is no offset"),
        ("[1]", "no offset"),
    ],
)
def test_what_is_no_offset_is_refused_with_the_option_and_the_value(
    written: OffsetsOption, complaint: str
) -> None:
    with pytest.raises(OffsetsInvalid, match="startingOffsets") as refused:
        parse_offsets("startingOffsets", written, EARLIEST)
    assert complaint in str(refused.value)


def test_a_queue_that_nobody_holds_is_named() -> None:
    offsets = parse_offsets("startingOffsets", {"orders": {"broker-z": {"1": 5}}}, EARLIEST)
    with pytest.raises(OffsetsInvalid, match="orders/broker-z/1"):
        offsets.check_known("startingOffsets", [QUEUE, OTHER])


def test_words_become_the_queues_own_offsets() -> None:
    assert [resolve(each, 10, 90) for each in (EARLIEST, LATEST, 0, 50)] == [10, 90, 0, 50]

"""Parsing the keyword arguments of reads, without Spark and without a cluster."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames, parse_topics
from jobs.reading.schema import ALL_COLUMNS
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from jobs.spark.keywords import (
    QueueKeywords,
    StreamKeywords,
    check_keywords,
    queue_options,
    stream_options,
)

NOW_MS = 1_735_689_600_000


def queue(**options: Any) -> ReadOptions:
    return queue_options("orders", check_keywords(options, QueueKeywords))  # type: ignore[arg-type]


def stream(**options: Any) -> ReadOptions:
    return stream_options("orders", check_keywords(options, StreamKeywords))  # type: ignore[arg-type]


def test_defaults_read_a_queue_from_its_start_and_a_stream_from_its_end() -> None:
    assert (queue().starting.offsets, queue().ending.offsets) == (Offsets(EARLIEST), Offsets(LATEST))
    assert stream().starting.offsets == Offsets(LATEST)
    assert queue() == queue(columns=None, startingTimestamp=None, failOnDataLoss=True)
    assert queue().columns == ALL_COLUMNS


def test_options_object_is_frozen_and_holds_what_was_given() -> None:
    options = queue(startingOffsets=7, endingTimestamp=NOW_MS, columns=["body"], failOnDataLoss=False)
    assert options.starting.offsets == Offsets(7)
    assert options.ending.times is not None
    assert options.ending.times.everywhere == NOW_MS
    assert (options.columns, options.fail_on_data_loss) == (("body",), False)
    with pytest.raises(AttributeError):
        options.committed = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"starting_offsets": 1}, "did you mean startingOffsets"),
        ({"endingOfsets": 1}, "did you mean endingOffsets"),
        ({"zzz": 1}, "the options are topics, topicPattern, nameservers, "),
    ],
)
def test_unknown_option_is_refused_with_the_similar_name(given: dict[str, int], remedy: str) -> None:
    with pytest.raises(OptionInvalid, match=f"unknown option {next(iter(given))}=1: {remedy}"):
        queue(**given)


def test_option_of_the_other_kind_of_read_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="unknown option endingOffsets"):
        stream(endingOffsets="latest")
    with pytest.raises(OptionInvalid, match="unknown option maxOffsetsPerTrigger"):
        queue(maxOffsetsPerTrigger=1)


def test_text_is_a_flag_or_a_number_as_in_spark() -> None:
    options = queue(failOnDataLoss="FALSE", committed=" true ", startingOffsets="Latest")
    assert (options.fail_on_data_loss, options.committed) == (False, True)
    assert options.starting.offsets == Offsets(LATEST)
    given = check_keywords({"minPartitions": "8", "pollIntervalMs": " 20 "}, StreamKeywords)  # type: ignore[typeddict-item]
    assert given == {"minPartitions": 8, "pollIntervalMs": 20}
    assert queue(startingOffsetsByTimestampStrategy="LATEST").strategy == "latest"


def test_any_replica_is_for_bounded_reads_without_groups_and_committed_ranges() -> None:
    assert (queue().replica, queue(replica=" ANY ").replica, stream(replica="master").replica) == (
        "master",
        "any",
        "master",
    )
    with pytest.raises(OptionInvalid, match="replica='slave' is unknown: give 'master', or 'any' to read"):
        queue(replica="slave")
    with pytest.raises(OptionInvalid, match="replica='any' is not supported by streams, because a slave may"):
        stream(replica="any")
    with pytest.raises(OptionInvalid, match="committed=True needs the masters"):
        queue(replica="any", committed=True)
    with pytest.raises(OptionInvalid, match=r"offsets of group billing needs the masters.*startingOffsets"):
        queue(replica="any", startingOffsets="group:billing")


def short(value: object) -> str:
    return str(value)[:20]


INTEGERS = [
    name
    for name, kind in get_type_hints(StreamKeywords).items()
    if {*(get_args(kind) or (kind,))} - {NoneType} == {int}
]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "value", ids=short, argvalues=[-5, "-5", True, 1.5, "8x", "", "٣", float("nan"), 2**63, "9" * 5000, [1]]
)
def test_invalid_integer_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(OptionInvalid, match=f"^{name}="):
        stream(**{name: value})


@pytest.mark.parametrize("name", ["failOnDataLoss", "committed", "mapFiles"])
@pytest.mark.parametrize("value", ["no", "", 1, 0, [], "1"])
def test_invalid_flag_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(OptionInvalid, match=f"^{name}=.*give True or False"):
        queue(**{name: value})


@pytest.mark.parametrize(
    "value", ids=short, argvalues=["[" * 100_000, "NaN", "9" * 30, {"t": {"b": {"٣": 1}}}, 2**63]
)
def test_offsets_that_no_queue_can_have_are_refused(value: Any) -> None:
    with pytest.raises(OffsetsInvalid, match=r"^startingOffsets"):
        queue(startingOffsets=value)


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(
        OptionInvalid, match=f"startingTimestamp={NOW_MS + 1} is after endingTimestamp={NOW_MS}"
    ):
        queue(startingTimestamp=NOW_MS + 1, endingTimestamp=NOW_MS)
    with pytest.raises(OptionInvalid, match="Strategy='newest'"):
        stream(startingOffsetsByTimestampStrategy="newest")
    with pytest.raises(OffsetsInvalid, match="startingOffsets"):
        stream(startingOffsets="yesterday")


def test_group_is_a_start_and_excludes_times() -> None:
    assert queue(startingOffsets="group:billing").starting.group == "billing"
    assert stream(startingOffsets=" group:billing ").starting.group == "billing"
    with pytest.raises(OffsetsInvalid, match="startingOffsets='group:' names no group"):
        queue(startingOffsets="group:")
    with pytest.raises(OptionInvalid, match="startingTimestamp both give a start"):
        queue(startingOffsets="group:billing", startingTimestamp=NOW_MS)
    with pytest.raises(OffsetsInvalid, match="endingOffsets='group:billing' is neither"):
        queue(endingOffsets="group:billing")


def test_topics_are_one_name_a_list_or_a_pattern() -> None:
    assert parse_topics("orders") == TopicNames(("orders",))
    several = parse_topics(None, ["payments", "orders", "orders"])
    assert (several.names, several.label) == (("orders", "payments"), "orders+payments")
    pattern = parse_topics(None, None, "order.*")
    assert pattern == TopicNames(pattern="order.*")
    assert pattern.label != parse_topics(None, None, "order.+").label
    assert len(parse_topics(None, [f"topic-{number}" for number in range(100)]).label) < 30


@pytest.mark.parametrize(
    ("topic", "topics", "pattern", "fault"),
    [
        (None, None, None, "give one of them"),
        ("orders", ["orders"], None, "give one of them"),
        ("orders", None, "orders", "give one of them"),
        ("", None, None, "topic='' is invalid"),
        (None, [], None, r"topics=\[\] is invalid"),
        (None, "orders", None, "topics='orders' is invalid"),
        (None, None, "(", "topicPattern='\\(' is not a valid regular expression"),
        (None, None, "", "use '\\.\\*'"),
    ],
)
def test_invalid_topics_are_refused(topic: Any, topics: Any, pattern: Any, fault: str) -> None:
    with pytest.raises(OptionInvalid, match=fault):
        parse_topics(topic, topics, pattern)

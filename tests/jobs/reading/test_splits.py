"""Planning a read: confirmed offsets only, splits of about equal size, missing ranges listed."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.job_errors import DataLoss, MissingRange, OffsetsInvalid, OptionInvalid
from jobs.reading.splits import QueueState, Split, StoreLocation, choose_ranges, cut_splits
from jobs.reading.starting_offsets import EARLIEST, LATEST, OffsetsOption, parse_offsets
from store.message.message_queue import MessageQueue

PLACE = StoreLocation("127.0.0.1:10911", "/nowhere", "id", 1024, 1000)


def state(queue_id: int, low: int, high: int) -> QueueState:
    return QueueState(MessageQueue("orders", "broker-a", queue_id), low, high, PLACE)


def choose(
    states: list[QueueState], starting: OffsetsOption = "earliest", ending: OffsetsOption = "latest"
) -> tuple[list[tuple[int, int, int]], list[MissingRange]]:
    ranges, missing = choose_ranges(
        states,
        parse_offsets("startingOffsets", starting, EARLIEST),
        parse_offsets("endingOffsets", ending, LATEST),
    )
    return [(each.queue.queue_id, each.begin, each.end) for each in ranges], missing


def test_earliest_to_latest_is_the_whole_queue_and_skips_empty_ones() -> None:
    assert choose([state(1, 5, 5), state(0, 10, 30)]) == ([(0, 10, 30)], [])


def test_from_latest_nothing_is_read_or_missing() -> None:
    assert choose([state(0, 10, 30)], "latest") == ([], [])


@pytest.mark.parametrize(
    ("starting", "ending", "read", "lost"),
    [
        (0, "latest", [(0, 10, 30)], [(0, 10)]),
        ("earliest", 50, [(0, 10, 30)], [(30, 50)]),
        (0, 50, [(0, 10, 30)], [(0, 10), (30, 50)]),
        (0, 5, [], [(0, 5)]),
        (40, 50, [], [(40, 50)]),
        (40, "latest", [], [(30, 40)]),
        (10, 30, [(0, 10, 30)], []),
    ],
)
def test_offsets_outside_the_queue_are_listed_as_missing(
    starting: int, ending: int, read: list[tuple[int, int, int]], lost: list[tuple[int, int]]
) -> None:
    ranges, missing = choose([state(0, 10, 30)], starting, ending)
    assert ranges == read
    assert [(each.begin, each.end) for each in missing] == lost


def test_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(OffsetsInvalid, match="startingOffsets 20 is greater than endingOffsets 15"):
        choose([state(0, 10, 30)], 20, 15)


def test_data_loss_lists_every_range_and_can_be_pickled() -> None:
    loss = DataLoss([MissingRange("orders", "broker-a", 0, 0, 10, "before the first offset, 10")])
    again = pickle.loads(pickle.dumps(loss))
    assert str(again) == str(loss)
    assert "10 requested messages" in str(loss)
    assert "orders/broker-a/0 [0, 10): before the first offset, 10" in str(loss)


def whole(queue_id: int, count: int) -> Split:
    return Split(MessageQueue("orders", "broker-a", queue_id), 7, 7 + count, PLACE)


@given(
    counts=st.lists(st.integers(1, 5_000), min_size=1, max_size=12),
    min_partitions=st.integers(1, 40),
    max_records=st.none() | st.integers(1, 2_000),
)
def test_splits_cover_each_range_once_and_have_about_equal_size(
    counts: list[int], min_partitions: int, max_records: int | None
) -> None:
    splits = cut_splits(
        [whole(index, count) for index, count in enumerate(counts)], min_partitions, max_records
    )
    for index, count in enumerate(counts):
        parts = [each for each in splits if each.queue.queue_id == index]
        assert parts[0].begin == 7
        assert parts[-1].end == 7 + count
        assert all(left.end == right.begin for left, right in pairwise(parts))
    share = -(-sum(counts) // min_partitions)
    assert max(each.message_count for each in splits) <= max(min(share, max_records or share), 1)
    assert min(each.message_count for each in splits) >= 1
    assert len(splits) >= min(min_partitions, sum(counts))


def test_long_queue_is_cut_in_proportion_to_its_messages() -> None:
    splits = cut_splits([whole(0, 970), whole(1, 10), whole(2, 10), whole(3, 10)], 4)
    assert [each.queue.queue_id for each in splits].count(0) == 4


@pytest.mark.parametrize(("min_partitions", "max_records"), [(0, None), (1, 0)])
def test_partition_options_below_one_are_refused(min_partitions: int, max_records: int | None) -> None:
    with pytest.raises(OptionInvalid, match="must be at least 1"):
        cut_splits([whole(0, 10)], min_partitions, max_records)


def test_no_ranges_give_no_splits() -> None:
    assert cut_splits([], 8) == []

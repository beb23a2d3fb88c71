"""Searches by time and by key, compared with plain definitions of their results."""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.commitlog.commit_log import CommitLog
from store.message.record import decode_record
from store.message.sys_flag import BORN_HOST_V6
from tests.store.checkpoints import make_checkpoint

# Files of 4 units and 4 keys, so that searches cross file boundaries.
TINY_FILES = {"consume_queue_file_bytes": 80, "index_entries": 5}
STEPS_MS = st.lists(st.sampled_from([0, 0, 1, 2, 500, 1000, 1001, 60_000]), max_size=30)
NUMBERS = itertools.count()

one_store = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def store(stores):
    return stores.open(**TINY_FILES)


def put_at_steps(store, clock, draft, topic: str, steps_ms: list[int], **named) -> list[int]:
    """Append one message per step of time, and return the storeTimestamps.

    `named` maps a field of the draft to its values, one per message.
    """
    times = []
    for step_ms in steps_ms:
        clock.advance(step_ms)
        times.append(clock.wall_ms())
        store.append(draft(topic=topic, **{name: values[len(times) - 1] for name, values in named.items()}))
    store.advance()
    while store.has_more_to_dispatch:
        store.advance()
    return times


@one_store
@given(steps_ms=STEPS_MS.filter(bool), which=st.integers(0, 29), near=st.integers(-1, 1))
def test_offset_by_timestamp_equals_a_plain_bisection(store, clock, draft, steps_ms, which, near):
    topic = f"topic-{next(NUMBERS)}"
    clock.advance(10_000)
    times = put_at_steps(store, clock, draft, topic, steps_ms)
    wanted_ms = times[which % len(times)] + near

    assert store.offset_by_timestamp(topic, 0, wanted_ms) == bisect_left(times, wanted_ms)
    assert store.offset_by_timestamp(topic, 0, wanted_ms, upper=True) == max(
        bisect_right(times, wanted_ms) - 1, 0
    )


def test_offset_by_timestamp_outside_the_queue_returns_its_ends(store, clock, draft):
    times = put_at_steps(store, clock, draft, "Topic", [0, 10, 10])
    assert [store.offset_by_timestamp("Topic", 0, when) for when in (-1, 0, times[2] + 1)] == [0, 0, 3]
    assert [store.offset_by_timestamp("Topic", 0, when, upper=True) for when in (-1, 1 << 62)] == [0, 2]
    assert store.offset_by_timestamp("Unknown", 0, times[0]) == 0


def test_offset_by_timestamp_finds_messages_from_ipv6_hosts(store, clock, draft):
    host = {"born_host": bytes(20), "sys_flag": BORN_HOST_V6}
    times = put_at_steps(
        store, clock, draft, "Topic", [10] * 9, **{name: [each] * 9 for name, each in host.items()}
    )
    assert [store.offset_by_timestamp("Topic", 0, when) for when in times] == list(range(9))


def test_offset_by_timestamp_in_an_interval_without_messages(store, clock, draft):
    """RocketMQ's example: three messages at t1, two at t3. For t2, upper is before lower."""
    times = put_at_steps(store, clock, draft, "Topic", [0, 0, 0, 100, 0])
    between_ms = times[0] + 50
    assert store.offset_by_timestamp("Topic", 0, between_ms, upper=True) == 2
    assert store.offset_by_timestamp("Topic", 0, between_ms) == 3


def test_offset_by_timestamp_never_returns_deleted_messages(stores, clock, draft, drain):
    store = stores.open(file_reserved_time_h=0, **TINY_FILES)
    times = put_at_steps(store, clock, draft, "Topic", [0] * 3 + [10] * 40, body=[b"x" * 600] * 43)
    drain(store)
    make_checkpoint(store)
    for path in (store.root / "commitlog").iterdir():
        os.utime(path, (0, 0))
    store.retention.delete_expired()
    for _ in range(12):
        store.advance()
        store.retention.finish()
        clock.advance(store.settings.delete_files_interval_ms)
    first = store.min_offset("Topic", 0)
    assert first > 0
    assert store.offset_by_timestamp("Topic", 0, times[0]) == first
    assert store.offset_by_timestamp("Topic", 0, times[0], upper=True) == first
    assert store.offset_by_timestamp("Topic", 0, times[-1]) == 42


def test_offset_by_timestamp_tolerates_damaged_records(stores, clock, draft):
    store = stores.open(**TINY_FILES)
    times = put_at_steps(store, clock, draft, "Topic", [10] * 12)
    log = store.root / "commitlog" / f"{0:020d}"
    size = len(store.get_message("Topic", 0, 0, 1, 1 << 20).slices[0])
    with log.open("r+b") as file:  # damage the records that a binary search reads first
        file.seek(5 * size)
        file.write(b"\xff" * (3 * size))
    for offset in (0, 3, 4, 8, 9, 11):
        assert store.offset_by_timestamp("Topic", 0, times[offset]) in (offset, 5 if offset == 8 else offset)
        assert store.offset_by_timestamp("Topic", 0, times[offset], upper=True) in (
            offset,
            7 if offset == 4 else offset,
        )


def test_offset_by_timestamp_reads_few_records_of_a_large_hole(stores, clock, draft, drain, monkeypatch):
    store = stores.open(commit_log_file_bytes=1 << 19)
    size = store.append(draft(b"x")).size_bytes
    times = [clock.wall_ms()]
    for _ in range(2999):
        clock.advance(1)
        times.append(store.append(draft(b"x")).store_timestamp)
    drain(store)
    with (store.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(500 * size)
        file.write(bytes(2000 * size))
    read_offsets: list[int] = []
    slice_of = CommitLog.slice

    def counted(log: CommitLog, offset: int, size_bytes: int) -> memoryview:
        read_offsets.append(offset)
        return slice_of(log, offset, size_bytes)

    monkeypatch.setattr(CommitLog, "slice", counted)
    for offset in (0, 1, 250, 499, 2500, 2501, 2750, 2998, 2999):
        read_offsets.clear()
        lower = store.offset_by_timestamp("Topic", 0, times[offset])
        assert lower == offset or (offset == 2500 and 500 <= lower < 2500)
        assert store.offset_by_timestamp("Topic", 0, times[offset], upper=True) >= offset
        assert len(read_offsets) < 1000


@one_store
@given(
    stored=st.lists(st.tuples(STEPS_MS.map(sum), st.sampled_from("abc")), max_size=24),
    wanted=st.sampled_from("abc"),
    begin=st.tuples(st.integers(0, 24), st.integers(-1, 1)),
    end=st.tuples(st.integers(0, 24), st.integers(-1, 1)),
)
def test_query_by_key_returns_messages_within_the_time_range(store, clock, draft, stored, wanted, begin, end):
    topic = f"topic-{next(NUMBERS)}"
    clock.advance(10_000)
    steps_ms, keys = [step for step, _ in stored], [key for _, key in stored]
    times = put_at_steps(store, clock, draft, topic, steps_ms, keys=keys)
    begin_ms, end_ms = ([0, *times][which % (len(times) + 1)] + near for which, near in (begin, end))

    found = store.query_by_key(topic, wanted, begin_ms=begin_ms, end_ms=end_ms)

    expected = [
        offset
        for offset, (when, key) in enumerate(zip(times, keys, strict=True))
        if key == wanted and begin_ms <= when <= end_ms
    ]
    assert [decode_record(record).queue_offset for record in found] == expected


def test_query_by_key_returns_the_newest_messages_if_limited(store, clock, draft):
    put_at_steps(store, clock, draft, "Topic", [1000] * 10, keys=["same"] * 10)
    found = store.query_by_key("Topic", "same", 3)
    assert [decode_record(record).queue_offset for record in found] == [7, 8, 9]

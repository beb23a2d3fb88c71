"""The bytes of another replica: checked record by record, whatever the size of the pieces."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.message.record import decode_record
from store.store_errors import RecordDamaged, StoreError
from tests.store.conftest import SMALL

FILE_BYTES = SMALL["commit_log_file_bytes"]


def log_of(store) -> bytes:
    data = b"".join(path.read_bytes() for path in sorted((store.root / "commitlog").iterdir()))
    return data[: store.positions.written]


def append_in_pieces(store, data, starts) -> None:
    for begin, end in pairwise([*starts, len(data)]):
        store.append_raw(begin, data[begin:end])


@pytest.fixture
def source(stores, draft):
    """Give a store with two files of records."""
    store = stores.open("source")
    for number in range(12):
        store.append(draft(b"%02d" % number * 400))
    store.confirm()
    assert FILE_BYTES < store.positions.written < 2 * FILE_BYTES
    return store


def test_promoted_replica_never_writes_earlier_times(stores, draft, clock, source):
    copy = stores.open("copy")
    copy.append_raw(0, log_of(source))
    copy.confirm()
    last = decode_record(copy.record_at(copy.positions.written - size_of_last(source))).store_timestamp
    clock.set_wall_ms(clock.wall_ms() - 3_600_000)
    assert copy.append(draft()).store_timestamp >= last


def test_raw_bytes_count_as_awaited_if_any_queue_is_awaited(stores, source):
    copy = stores.open("copy")
    data, half = log_of(source), FILE_BYTES
    copy.append_raw(0, data[:half])
    assert copy.positions.awaited == 0
    copy.await_messages({("Another", 7)})
    copy.append_raw(half, data[half:])
    assert copy.positions.awaited == copy.positions.written == len(data)


def test_part_of_a_record_that_is_longer_than_a_slice_is_not_skipped(stores, draft, drain, read_all):
    source = stores.open("long", commit_log_file_bytes=1 << 16)
    source.append(draft(b"x" * 10_000))
    source.append(draft(b"next"))
    source.confirm()
    copy = stores.open("copy", commit_log_file_bytes=1 << 16, dispatch_slice_bytes=4096)
    data = log_of(source)
    copy.append_raw(0, data[:6_000])
    drain(copy)
    assert copy.positions.dispatched == 0
    copy.append_raw(6_000, data[6_000:])
    drain(copy)
    assert [len(message.body) for message in read_all(copy)] == [10_000, 4]


def size_of_last(store) -> int:
    """Return the size in bytes of the last record of the log."""
    position = FILE_BYTES
    while (following := position + len(store.record_at(position))) < store.positions.written:
        position = following
    return store.positions.written - position


@pytest.mark.parametrize(
    ("place", "fault", "reason"),
    [
        (0, struct.pack(">i", 1 << 30), "totalSize"),
        (0, struct.pack(">i", -5), "totalSize"),
        (4, b"\0\0\0\0", "magic"),
        (28, struct.pack(">q", 77), "physicalOffset"),
        (84, struct.pack(">i", 9), "do not add up"),
        (8, struct.pack(">i", 9), "CRC of the body"),
        (100, b"!", "CRC of the body"),
    ],
)
@pytest.mark.parametrize("piece", [5, 777, 1 << 20])
def test_damaged_record_is_refused_with_its_position(stores, source, place, fault, reason, piece):
    copy = stores.open("copy")
    data = bytearray(log_of(source))
    bad = FILE_BYTES + len(source.record_at(FILE_BYTES))
    data[bad + place : bad + place + len(fault)] = fault
    with pytest.raises(RecordDamaged, match=f"offset {bad:,} is damaged: .*{reason}") as raised:
        append_in_pieces(copy, data, range(0, len(data), piece))
    assert raised.value.position == bad - FILE_BYTES
    assert f"{FILE_BYTES:020d}" in str(raised.value)
    assert copy.positions.written <= bad + max(piece, 2000)
    good = log_of(source)
    assert log_of(copy)[:bad] == good[: min(bad, copy.positions.written)]


def test_blank_record_of_a_wrong_size_is_refused(stores, source):
    copy = stores.open("copy")
    data = bytearray(log_of(source))
    blank = data.index(struct.pack(">I", 0xCBD43194)) - 4
    data[blank : blank + 4] = struct.pack(">i", 8)
    with pytest.raises(RecordDamaged, match=f"offset {blank:,} is damaged"):
        copy.append_raw(0, data)


def test_append_after_an_incomplete_record_is_refused_until_it_is_complete(stores, draft, source):
    copy = stores.open("copy")
    data = log_of(source)
    copy.append_raw(0, data[:-10])
    with pytest.raises(StoreError, match="inside the record at"):
        copy.append(draft())
    copy.append_raw(len(data) - 10, data[-10:])
    assert copy.append(draft()).physical_offset == len(data)


def test_append_inside_the_blank_end_of_a_file_is_refused(stores, draft, source):
    copy = stores.open("copy")
    copy.append_raw(0, log_of(source)[: FILE_BYTES - 1])
    with pytest.raises(StoreError, match=f"before {FILE_BYTES:,}"):
        copy.append(draft())


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cuts=st.sets(st.integers(1, 2 * FILE_BYTES), max_size=20))
def test_pieces_of_any_size_give_an_equal_log(stores, source, tmp_path_factory, cuts):
    copy = stores.open(tmp_path_factory.mktemp("copy").name)
    data = log_of(source)
    append_in_pieces(copy, data, [0, *sorted(cut for cut in cuts if cut < len(data))])
    assert log_of(copy) == data
    copy.close()

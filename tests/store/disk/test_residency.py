"""Reads that must not wait for the disk: they report the missing ranges, and succeed after a WarmJob."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.commitlog.mapped_file import MappedFile
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.unit import UNIT
from store.disk.residency import PAGE_BYTES, READ_AHEAD_FROM_BYTES, FileRange, NotResident, Residency, WarmJob
from store.kernels import read as kernel
from store.message.record import decode_record, decode_records
from store.message_store import GetMessageStatus, MessageStore
from store.reading.message_filter import TagFilter
from tests.store.cold_disk import make_cold, settled
from tests.store.kernels.plain_dispatch import plain_record_spans


@pytest.fixture
def filled(stores, draft, drain) -> MessageStore:
    """Return a store with 300 messages of different sizes, with keys, in three queues and many log files."""
    store = stores.open(consume_queue_file_bytes=4000, index_entries=512)
    for number in range(300):
        store.append(
            draft(
                b"x" * (number * 7 % 900),
                queue_id=number % 3,
                tags="abc"[number % 3 - number % 2],
                keys=f"k{number % 50}",
            )
        )
    drain(store)
    return store


def test_cold_pull_reports_missing_ranges_and_then_returns_the_same(filled, monkeypatch) -> None:
    expected = {
        (queue_id, offset): filled.get_message("Topic", queue_id, offset, 32, 20_000)
        for queue_id in range(3)
        for offset in (0, 1, 57, 99, 100, 101)
    }
    disk = make_cold(filled, monkeypatch)
    for (queue_id, offset), found in expected.items():
        again = settled(disk, lambda q=queue_id, o=offset: filled.get_message("Topic", q, o, 32, 20_000))
        assert (again.status, again.next_begin_offset) == (found.status, found.next_begin_offset)
        assert b"".join(again.slices) == b"".join(found.slices)
    assert disk.rounds > 3


def test_filtered_cold_pull_returns_the_same_records(filled, monkeypatch) -> None:
    wanted = TagFilter(["b"])
    expected = filled.get_message("Topic", 1, 0, 32, 1 << 20, wanted)
    disk = make_cold(filled, monkeypatch)
    found = settled(disk, lambda: filled.get_message("Topic", 1, 0, 32, 1 << 20, wanted))
    assert [bytes(part) for part in found.slices] == [bytes(part) for part in expected.slices]
    assert found.status == GetMessageStatus.FOUND


def test_cold_searches_by_time_key_and_id_return_the_same(filled, monkeypatch, clock) -> None:
    times = [0, clock.wall_ms() - 1, clock.wall_ms(), clock.wall_ms() + 1]
    by_time = [filled.offset_by_timestamp("Topic", 1, time_ms) for time_ms in times]
    by_key = [bytes(record) for record in filled.query_by_key("Topic", "k7")]
    by_id = bytes(filled.record_at(0))
    disk = make_cold(filled, monkeypatch)
    assert [
        settled(disk, lambda t=time_ms: filled.offset_by_timestamp("Topic", 1, t)) for time_ms in times
    ] == by_time
    query = filled.key_query("Topic", "k7")
    query.find()
    while not settled(disk, query.check_candidates):
        pass
    assert [bytes(record) for record in query.records] == by_key
    assert len(by_key) == 6
    disk.warm.clear()
    assert bytes(settled(disk, lambda: filled.record_at(0))) == by_id


def test_cold_search_by_key_reads_all_candidates_in_few_waits(filled, monkeypatch) -> None:
    disk = make_cold(filled, monkeypatch)
    query = filled.key_query("Topic", "k7")
    query.find()
    settled(disk, query.check_candidates)
    assert disk.rounds <= 3


def test_records_truncated_during_a_cold_read_are_not_served(filled, monkeypatch) -> None:
    disk = make_cold(filled, monkeypatch)
    with pytest.raises(NotResident) as cold, filled.resident_only:
        filled.get_message("Topic", 0, 50, 32, 1 << 20)
    filled.truncate_to(decode_record(filled.record_at(0)).commit_log_offset, discard_confirmed=True)
    disk.bring(cold.value)
    found = settled(disk, lambda: filled.get_message("Topic", 0, 50, 32, 1 << 20))
    assert found.status != GetMessageStatus.FOUND


def test_warm_job_ignores_a_missing_file(tmp_path: Path) -> None:
    WarmJob([FileRange(str(tmp_path / "gone"), 0, 10)]).run()


def test_recently_written_bytes_are_read_without_a_residency_check(filled) -> None:
    with filled.resident_only:
        found = filled.get_message("Topic", 0, 99, 32, 1 << 20)
    assert len(decode_records(b"".join(found.slices))) == 1


def test_missing_range_reports_pages_that_are_not_cached(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(os.urandom(64 * PAGE_BYTES))
    drop_cached(path)
    file = MappedFile(path, 0, 64 * PAGE_BYTES)
    residency = Residency()
    lacks = residency.missing_range(file, 5, 10 * PAGE_BYTES)
    if lacks is None:
        pytest.skip("this file system keeps all in memory")
    assert lacks == FileRange(str(path), 0, 10 * PAGE_BYTES)
    WarmJob([lacks]).run()
    assert residency.missing_range(file, 5, 10 * PAGE_BYTES) is None
    with residency:
        assert (
            residency.pread(file.descriptor, 100, 3 * PAGE_BYTES, str(path))
            == path.read_bytes()[3 * PAGE_BYTES : 3 * PAGE_BYTES + 100]
        )
    file.close()


@pytest.mark.parametrize("is_partly_cached", [False, True])
def test_pread_that_would_wait_raises_not_resident_with_its_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_partly_cached: bool
) -> None:
    path = tmp_path / "units"
    path.write_bytes(os.urandom(8 * PAGE_BYTES))
    read = os.preadv

    def preadv(descriptor: int, into: list[bytearray], place: int, flags: int = 0) -> int:
        if not flags & os.RWF_NOWAIT:
            return read(descriptor, into, place)
        if is_partly_cached:
            return read(descriptor, [memoryview(into[0])[:50]], place)
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", preadv)
    residency = Residency()
    with path.open("rb") as file:
        with pytest.raises(NotResident) as cold, residency:
            residency.pread(file.fileno(), 100, 3 * PAGE_BYTES, str(path))
        assert cold.value.ranges == [FileRange(str(path), 3 * PAGE_BYTES, 3 * PAGE_BYTES + 100)]
        expected = path.read_bytes()[3 * PAGE_BYTES :][:100]
        assert residency.pread(file.fileno(), 100, 3 * PAGE_BYTES, str(path)) == expected  # it may wait


def test_long_range_of_an_earlier_process_is_missing_until_read_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(os.urandom(READ_AHEAD_FROM_BYTES * 4))
    file = MappedFile(path, 0, READ_AHEAD_FROM_BYTES * 4)
    long = READ_AHEAD_FROM_BYTES
    assert Residency().missing_range(file, 0, long) is None  # this process has written it
    residency = Residency(lambda: 2 * long)
    assert residency.missing_range(file, 10, long + 10) == FileRange(str(path), 10, long + 10)
    assert residency.missing_range(file, 10, long + 10) is None
    assert residency.missing_range(file, 0, PAGE_BYTES) is None  # short ranges are not read in a thread
    assert residency.missing_range(file, long // 2, long * 2) == FileRange(str(path), long // 2, long * 2)
    assert residency.missing_range(file, long * 2, long * 4) is None
    file.close()


def test_chunks_after_a_cold_range_must_be_read_once_again(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    long = READ_AHEAD_FROM_BYTES
    path.write_bytes(os.urandom(long * 4))
    file = MappedFile(path, 0, long * 4)
    residency = Residency(lambda: long * 4)
    for begin in range(0, long * 4, long):
        residency.missing_range(file, begin, begin + long)
    assert residency.missing_range(file, long, long * 2) is None
    drop_cached(path)
    if residency.missing_range(file, 0, long) is None:
        pytest.skip("this file system keeps all in memory")
    WarmJob([FileRange(str(path), 0, long * 4)]).run()
    assert residency.missing_range(file, 0, long) is None
    assert residency.missing_range(file, long, long * 2) == FileRange(str(path), long, long * 2)
    file.close()


def test_long_pull_reads_few_units_beyond_those_it_returns(stores, draft, drain, monkeypatch) -> None:
    store = stores.open(commit_log_file_bytes=16 << 20)
    for _ in range(12_000):
        store.append(draft(b"x" * 400))
    drain(store)
    asked = []
    read = ConsumeQueue.read_units

    def read_units(queue: ConsumeQueue, offset: int, count: int) -> bytes:
        asked.append(count)
        return read(queue, offset, count)

    monkeypatch.setattr(ConsumeQueue, "read_units", read_units)
    got = offset = 0
    while offset < 12_000:
        found = store.get_message("Topic", 0, offset, 1 << 20, 3 << 20)
        assert found.next_begin_offset == offset + found.message_count > offset
        offset, got = found.next_begin_offset, got + found.message_count
    assert got == 12_000
    assert asked[1] < 3 * (3 << 20) // (2 * 400)


def drop_cached(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


UNITS = st.tuples(
    st.integers(0, 40), st.sampled_from([-1, 0, 1, 91, 5_000, kernel.FILLER_SIZE]), st.sampled_from([1, 2, 3])
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(UNITS, max_size=12), st.one_of(st.none(), st.frozensets(st.sampled_from([1, 2]))),
    st.integers(1, 10), st.integers(1, 20_000), st.sampled_from([0, 1_000]), st.integers(1, 4),
)  # fmt: skip
def test_record_spans_kernel_equals_its_plain_python_version(
    units, codes, max_messages, max_bytes, gap, spans_max
) -> None:
    base, place, rows = 1_000, 1_000, []
    for step, size, code in units:
        place += step * 100
        rows.append((place, size, code))
        place += max(size, 0) if size != kernel.FILLER_SIZE else 0
    data = b"".join(UNIT.pack(*row) for row in rows)
    spans = np.zeros((spans_max, 2), dtype=np.int64)
    progress = np.zeros(kernel.READ_FIELDS, dtype=np.int64)
    count, messages = kernel.record_spans(
        20_000, base, np.frombuffer(data, dtype=np.uint8), np.fromiter(codes or (), dtype=np.int64),
        codes is not None, max_messages, max_bytes, progress, gap, spans,
    )  # fmt: skip
    expected = plain_record_spans(20_000, base, rows, codes, max_messages, max_bytes, gap, spans_max)
    assert ([tuple(span) for span in spans[:count].tolist()], messages) == expected

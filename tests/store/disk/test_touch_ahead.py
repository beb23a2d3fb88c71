"""Pages ahead of the writer are read into the page cache, up to a limit, and stay clean."""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from store.commitlog.mapped_file import MappedFile, allocate_file
from store.common.background import BackgroundWork, Lane
from store.disk.residency import FileRange, Residency
from store.disk.touch_ahead import AHEAD_BYTES, Touch, TouchAhead, touch, touch_sequentially
from store.index.index_file import index_file_bytes
from store.upkeep import maintenance

MIB = 1024 * 1024
FILE_BYTES = 100 * MIB


@dataclass
class Touched:
    """The ranges touched by the work of a lane."""

    lane: Lane
    ranges: list[tuple[str, int, int]] = field(default_factory=list)

    def touch(self, path: str, begin: int, end: int) -> None:
        self.ranges.append((path, begin, end))

    def ahead(self, written: int) -> TouchAhead:
        return TouchAhead(self.lane, written, self.touch)

    def take(self) -> list[tuple[str, int, int]]:
        self.lane.finish()
        taken = [(path, begin // MIB, end // MIB) for path, begin, end in self.ranges]
        self.ranges.clear()
        return taken


@pytest.fixture
def touched() -> Iterator[Touched]:
    work = BackgroundWork()
    yield Touched(work.lane("touch"))
    work.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    allocate_file(path, 8 * MIB, tmp_path)
    return path


@pytest.fixture
def advised(monkeypatch) -> dict[Path, set[int]]:
    """Return the pages that the kernel was advised to read (WILLNEED), by file."""
    advise = os.posix_fadvise
    advised: dict[Path, set[int]] = defaultdict(set)

    def record(descriptor: int, begin: int, size_bytes: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            advised[Path(f"/proc/self/fd/{descriptor}").readlink()] |= pages(begin, begin + size_bytes)
        advise(descriptor, begin, size_bytes, advice)

    monkeypatch.setattr(os, "posix_fadvise", record)
    return advised


@pytest.fixture
def sent(monkeypatch) -> dict[Path, set[int]]:
    """Return the pages that were sent to another descriptor (sendfile), by file."""
    send = os.sendfile
    sent: dict[Path, set[int]] = defaultdict(set)

    def record(target: int, source: int, begin: int, size_bytes: int) -> int:
        sent_bytes = send(target, source, begin, size_bytes)
        sent[Path(f"/proc/self/fd/{source}").readlink()] |= pages(begin, begin + sent_bytes)
        return sent_bytes

    monkeypatch.setattr(os, "sendfile", record)
    return sent


def pages(begin: int, end: int) -> set[int]:
    return set(range(begin // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)))


def is_uncached(path: Path, begin: int, end: int) -> bool:
    mapped = MappedFile(path, 0, 8 * MIB)
    try:
        return Residency().uncached_range(mapped, begin, end) is not None
    finally:
        mapped.close()


@pytest.fixture(params=[touch, touch_sequentially], ids=lambda function: function.__name__)
def any_touch(request) -> Touch:
    return request.param


def test_touched_bytes_are_in_the_page_cache_and_others_are_not(file, any_touch):
    assert is_uncached(file, 0, mmap.PAGESIZE)
    any_touch(str(file), 4 * MIB, 8 * MIB)
    assert not is_uncached(file, 4 * MIB, 8 * MIB)
    assert is_uncached(file, 0, mmap.PAGESIZE)


def test_touched_pages_stay_clean(file, any_touch):
    before = file.stat()
    any_touch(str(file), 0, 8 * MIB)
    after = file.stat()
    assert (after.st_mtime_ns, after.st_blocks) == (before.st_mtime_ns, before.st_blocks)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # evicts clean pages only
    finally:
        os.close(descriptor)
    residency, mapped = Residency(), MappedFile(file, 0, 8 * MIB)
    assert residency.uncached_range(mapped, 0, 8 * MIB) == FileRange(str(file), 0, 8 * MIB)
    mapped.close()


def test_touch_ignores_a_missing_file(tmp_path, any_touch):
    any_touch(str(tmp_path / "gone"), 0, MIB)


def test_touch_ends_at_the_end_of_the_file(file, any_touch):
    any_touch(str(file), 4 * MIB, 16 * MIB)
    assert not is_uncached(file, 4 * MIB, 8 * MIB)


def test_touch_ahead_stays_a_limited_distance_ahead_of_the_writer(touched):
    ahead = touched.ahead(0)
    assert AHEAD_BYTES == 32 * MIB
    ahead.look("a", 0, FILE_BYTES, 4 * MIB)
    assert touched.take() == [("a", 4, 36)]
    ahead.look("a", 0, FILE_BYTES, 19 * MIB)  # more than half of the touched range is left
    assert touched.take() == []
    ahead.look("a", 0, FILE_BYTES, 20 * MIB)
    assert touched.take() == [("a", 36, 52)]
    ahead.look("a", 0, FILE_BYTES, 60 * MIB)  # the writer overtook: written pages are not touched
    assert touched.take() == [("a", 60, 92)]
    ahead.look("a", 0, FILE_BYTES, 80 * MIB)
    assert touched.take() == [("a", 92, 100)]
    ahead.look("a", 0, FILE_BYTES, 99 * MIB)
    assert touched.take() == []


def test_next_file_is_touched_from_the_position_of_the_writer(touched):
    ahead = touched.ahead(0)
    ahead.look("a", 0, FILE_BYTES, 95 * MIB)
    ahead.look("b", FILE_BYTES, FILE_BYTES, FILE_BYTES + 3 * MIB)
    assert touched.take() == [("a", 95, 100), ("b", 3, 35)]


def test_nothing_is_touched_before_the_writer_has_advanced(touched):
    assert touched.ahead(10 * MIB).look_at == 14 * MIB


def test_log_and_index_of_a_busy_store_are_touched_ahead(stores, draft, drain, sent, advised):
    store = stores.open(
        commit_log_file_bytes=64 * MIB, index_slots=1000, index_entries=MIB, max_message_bytes=2 * MIB
    )
    for _ in range(5):
        store.append(draft(b"x" * MIB, keys="key"))
        drain(store)
    store.finish_background()
    log = store.root / "commitlog" / f"{0:020d}"
    [index] = (store.root / "index").iterdir()
    entries_end = index_file_bytes(1000, 6)
    assert sent[log] >= pages(store.positions.written, 32 * MIB)
    assert sent[log].isdisjoint(pages(48 * MIB, 49 * MIB))
    assert advised[index] >= pages(entries_end, entries_end + 4 * MIB)
    assert not advised[log]
    assert not sent[index], "large folios are only for files that are written by write(2)"


def test_start_touches_the_slots_of_the_current_index_file(stores, draft, drain, monkeypatch):
    store = stores.open(index_slots=1000)
    store.append(draft(keys="key"))
    drain(store)
    [path] = (store.root / "index").iterdir()
    store.close()
    touched = []
    monkeypatch.setattr(maintenance, "touch", lambda *where: touched.append(where))
    again = stores.open(index_slots=1000)
    again.finish_background()
    assert touched == [(str(path), 0, 40 + 4 * 1000)]

"""Full disks and failing system calls.

Appends report the error, no stored data is lost, and the store recovers by itself.
"""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from store.commitlog import allocate, mapped_file
from store.consumequeue import consume_queue
from store.store_errors import StoreError
from tests.eventually import LIMIT_S, NEVER_S


class DiskThatFillsUp:
    """Calls fail with ENOSPC while `is_full` is True."""

    def __init__(self) -> None:
        self.is_full = False

    def guard(self, call):
        def guarded(*arguments, **named):
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*arguments, **named)

        return guarded


@pytest.fixture
def disk(monkeypatch) -> DiskThatFillsUp:
    disk = DiskThatFillsUp()
    monkeypatch.setattr(mapped_file.os, "posix_fallocate", disk.guard(os.posix_fallocate))
    monkeypatch.setattr(consume_queue, "write_bytes", disk.guard(consume_queue.write_bytes))
    return disk


def test_full_disk_refuses_appends_that_need_a_new_log_file(stores, draft, drain, read_all, disk):
    store = stores.open()
    for _ in range(2):
        store.append(draft(b"x" * 3000))
    drain(store)
    disk.is_full = True
    with pytest.raises(
        StoreError, match=r"No space left on device: \d{20} needs 8,192 bytes, and [\d,]+ are free"
    ):
        store.append(draft(b"x" * 3000))
    store.append(draft(b"small"))  # this record still fits into the file
    assert len(read_all(store)) == 2
    disk.is_full = False
    result = store.append(draft(b"x" * 3000))
    drain(store)
    assert (result.physical_offset, result.queue_offset) == (8192, 3)
    assert len(read_all(store)) == 4
    assert list(store.root.glob("*.new")) == []


@pytest.mark.parametrize("preallocate", [False, True])
def test_closed_store_maps_no_file_after_a_refused_append(stores, draft, drain, disk, preallocate):
    """An exception must not keep maps alive through its traceback until the garbage collector runs."""
    store = stores.open(preallocate=preallocate)
    for _ in range(2):
        store.append(draft(b"x" * 3000))
    drain(store)
    disk.is_full = True
    gc.disable()
    try:
        with pytest.raises(StoreError, match="No space left on device"):
            store.append(draft(b"x" * 3000))
        store.close()
        assert str(store.root) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


def test_full_disk_for_a_consume_queue_refuses_appends_and_loses_nothing(
    stores, draft, drain, read_all, disk, clock
):
    store = stores.open()
    store.await_messages({("Topic", 1), ("Topic", 2)})
    store.append(draft(b"1", queue_id=1))
    store.append(draft(b"2", queue_id=2))
    disk.is_full = True
    assert store.advance() == []
    assert "No space left on device" in store.write_refusal
    assert not store.has_more_to_dispatch  # the owner must not loop
    with pytest.raises(StoreError, match="No space left"):
        store.append(draft())
    disk.is_full = False
    store.advance()  # before the retry delay has passed
    assert store.write_refusal is not None
    clock.advance(ms=1000)
    assert {arrival.queue_id for arrival in store.advance()} == {1, 2}
    assert store.write_refusal is None
    drain(store)
    assert [len(read_all(store, "Topic", queue_id)) for queue_id in (1, 2)] == [1, 1]


def log_files(store) -> list[str]:
    return sorted(path.name for path in (store.root / "commitlog").iterdir())


def test_preallocation_creates_the_next_log_files(stores, draft, drain):
    store = stores.open(preallocate=True)
    store.append(draft(b"x" * 500))
    store.advance()
    store.finish_background()
    assert log_files(store) == [f"{0:020d}"]
    store.append(draft(b"x" * 3000))
    store.advance()
    store.finish_background()
    assert log_files(store) == [f"{0:020d}", f"{8192:020d}"]
    store.append(draft(b"x" * 3000))
    store.advance()
    store.finish_background()
    assert log_files(store) == [f"{0:020d}", f"{8192:020d}", f"{16384:020d}"]
    assert store.append(draft(b"x" * 3000)).physical_offset == 8192
    drain(store)
    store.close()
    assert log_files(store) == [f"{0:020d}", f"{8192:020d}"]  # unused preallocated files are deleted


def test_failed_preallocation_is_reported_when_the_file_is_needed(stores, draft, disk, clock):
    store = stores.open(preallocate=True, flush="sync")  # nothing is flushed, so nothing is dispatched
    store.append(draft(b"x" * 3000))
    disk.is_full = True
    store.advance()
    store.finish_background()
    store.append(draft(b"x" * 3000))
    assert store.write_refusal is None
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left"):
            store.append(draft(b"x" * 3000))
    disk.is_full = False
    with pytest.raises(StoreError, match="No space left"):  # allocation is not retried at every append
        store.append(draft(b"x" * 3000))
    clock.advance(ms=1000)
    assert store.append(draft(b"x" * 3000)).physical_offset == 8192


def test_append_waits_once_for_a_hanging_disk_then_fails_immediately(stores, draft, monkeypatch):
    store = stores.open(preallocate=True)
    store.append(draft(b"x" * 6000))
    may_continue, allocate_now = threading.Event(), os.posix_fallocate

    def fallocate_that_hangs(*arguments) -> None:
        may_continue.wait(LIMIT_S)
        allocate_now(*arguments)

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", fallocate_that_hangs)
    monkeypatch.setattr(allocate, "_WAIT_S", 0.01)
    with pytest.raises(StoreError, match=r"next CommitLog file was not allocated within 0\.01 s: try again"):
        store.append(draft(b"x" * 3000))
    monkeypatch.setattr(allocate, "_WAIT_S", NEVER_S)
    with pytest.raises(StoreError, match="try again"):
        store.append(draft(b"x" * 3000))
    assert store.append(draft(b"small")).queue_offset == 1  # this record still fits into the file
    may_continue.set()
    store.finish_background()
    assert store.append(draft(b"x" * 3000)).physical_offset == 8192


def test_append_waits_longer_for_the_first_log_file(stores, draft, monkeypatch):
    """Only appends wait for the first file, and refusing the first append after a start helps no client."""
    is_awaited, allocate_now, wait = threading.Event(), os.posix_fallocate, allocate.wait_for

    def wait_for(future, timeout_s: float) -> None:
        is_awaited.set()
        wait(future, timeout_s)

    def fallocate_once_awaited(*arguments) -> None:
        assert is_awaited.wait(LIMIT_S)
        allocate_now(*arguments)

    monkeypatch.setattr(allocate, "wait_for", wait_for)
    monkeypatch.setattr(mapped_file.os, "posix_fallocate", fallocate_once_awaited)
    monkeypatch.setattr(allocate, "_WAIT_S", 0)
    monkeypatch.setattr(allocate, "_FIRST_WAIT_S", NEVER_S)
    store = stores.open(preallocate=True)
    assert store.append(draft(b"x")).physical_offset == 0


def test_truncate_to_removes_preallocated_files(stores, draft, drain, read_all):
    store = stores.open(preallocate=True)
    second = [store.append(draft(b"x" * 3000)) for _ in range(2)][1]
    store.advance()
    store.finish_background()
    assert len(log_files(store)) == 3
    store.flush_now()
    store.truncate_to(second.physical_offset, discard_confirmed=True)
    assert log_files(store) == [f"{0:020d}"]
    positions = [store.append(draft(b"y" * 3000)).physical_offset for _ in range(4)]
    assert positions == [second.physical_offset, 8192, 8192 + second.size_bytes, 16384]
    drain(store)
    assert [message.body[:1] for message in read_all(store)] == [b"x", *[b"y"] * 4]


def locked_kib() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck")]
    return int(line.split()[1])


def test_warm_mapped_file_locks_the_last_and_the_next_file_in_memory(stores, draft):
    before = locked_kib()
    store = stores.open(preallocate=True, warmMapedFileEnable=True)
    store.append(draft(b"x" * 6000))
    store.advance()
    store.finish_background()
    assert locked_kib() == before + 16
    store.append(draft(b"x" * 6000))
    store.close()
    assert locked_kib() <= before + 8


def test_warm_mapped_file_without_permission_to_lock_memory_continues(
    stores, draft, monkeypatch, drain, read_all
):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mapped_file.MappedFile, "lock_in_memory", refuse)
    store = stores.open(preallocate=True, warm_mapped_file=True)
    for _ in range(3):
        store.append(draft(b"x" * 6000))
    drain(store)
    assert len(read_all(store)) == 3


def test_read_skips_a_damaged_unit_and_serves_the_others(stores, draft, drain, read_all):
    store = stores.open()
    for number in range(5):
        store.append(draft(b"%d" % number))
    drain(store)
    path = store.root / "consumequeue" / "Topic" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(2 * 20 + 7)
        file.write(b"\x01")
    assert [message.body for message in read_all(store)] == [b"0", b"1", b"3", b"4"]
    assert store.skipped > 0


def test_slices_stay_readable_after_the_store_is_closed(stores, draft, drain):
    store = stores.open()
    store.append(draft(b"kept"))
    drain(store)
    [run] = store.get_message("Topic", 0, 0, 1, 1000).slices
    store.close()
    assert b"kept" in bytes(run)

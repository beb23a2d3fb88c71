"""Stores with many queues.

A start reads no queue and no index file that is unchanged since the last checkpoint, the cost of a checkpoint
depends on the number of changed queues, and few files are open at a time.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from store.consumequeue import check, consume_queue
from store.consumequeue.consume_queue import ConsumeQueue
from store.index.index_file import IndexFile, IndexSnapshot
from store.store_errors import StoreError
from store.upkeep import checkpoints
from tests.store.checkpoints import make_checkpoint


def fill(store, draft, count: int, queues: int = 3, start: int = 0) -> None:
    for number in range(start, start + count):
        store.append(draft(b"%d" % number, queue_id=number % queues))


def age_derived_files(root: Path) -> None:
    """Set the modification times of derived files one second back, so that later changes are detectable."""
    past_ns = time.time_ns() - 1_000_000_000
    for path in [*(root / "consumequeue").rglob("0*"), *(root / "index").iterdir()]:
        os.utime(path, ns=(past_ns, past_ns))


@pytest.fixture
def units_read(monkeypatch) -> list[tuple[int, int]]:
    """Give a list of the reads of queues from now on, as (queue id, first unit)."""
    seen: list[tuple[int, int]] = []
    read = ConsumeQueue.read_units

    def read_units(self: ConsumeQueue, offset: int, count: int) -> bytes:
        if self.topic == "Topic":  # a broker of another test may warm up in a thread
            seen.append((self.queue_id, offset))
        return read(self, offset, count)

    monkeypatch.setattr(ConsumeQueue, "read_units", read_units)
    return seen


def store_with_old_files(stores, draft, drain, count: int = 130):
    store = stores.open()
    fill(store, draft, count)
    drain(store)
    age_derived_files(store.root)
    return store


def test_start_after_a_clean_shutdown_reads_no_queue(stores, draft, drain, read_all, units_read):
    store = store_with_old_files(stores, draft, drain)
    store.close()
    files = stores.files(store.root)
    units_read.clear()
    again = stores.open()
    assert units_read == []
    assert [len(read_all(again, "Topic", queue_id)) for queue_id in range(3)] == [44, 43, 43]
    assert again.append(draft(queue_id=1)).queue_offset == 43
    again.truncate_to(store.positions.written, discard_confirmed=True)
    again.close()
    assert stores.files(store.root) == files


def test_only_a_queue_file_changed_since_the_checkpoint_is_repaired(stores, draft, drain, monkeypatch):
    store = store_with_old_files(stores, draft, drain)
    store.close()
    files = stores.files(store.root)
    last = store.root / "consumequeue" / "Topic" / "1" / f"{800:020d}"
    content = bytearray(last.read_bytes())
    content[7] ^= 1
    last.write_bytes(content)
    checked: list[tuple[int, int]] = []
    original = check.check_file

    def check_file(queue, start, *more):
        checked.append((queue.queue_id, start))
        return original(queue, start, *more)

    monkeypatch.setattr(check, "check_file", check_file)
    stores.open().close()
    assert checked == [(1, 40)]
    assert stores.files(store.root) == files


def test_change_with_the_mtime_of_the_checkpoint_is_detected(stores, draft, drain):
    """File times have a coarse resolution, so the time of a file that was just written proves nothing."""
    store = stores.open()
    fill(store, draft, 30)
    drain(store)
    path = store.root / "consumequeue" / "Topic" / "0" / f"{0:020d}"
    now_ns = time.time_ns() + 3_600_000_000_000  # an hour ahead, so that it counts as recent
    os.utime(path, ns=(now_ns, now_ns))
    store.close()
    files = stores.files(store.root)
    path.write_bytes(bytes(400))
    os.utime(path, ns=(now_ns, now_ns))
    stores.open().close()
    assert stores.files(store.root) == files


def test_units_after_the_checkpoint_are_dispatched_again_after_a_kill(stores, draft, drain):
    store = store_with_old_files(stores, draft, drain, 100)
    make_checkpoint(store)
    mtimes = {path: path.stat().st_mtime_ns for path in (store.root / "consumequeue").rglob("0*")}
    fill(store, draft, 20, start=100)
    drain(store)
    for path, time_ns in mtimes.items():  # as on a file system without modification times
        os.utime(path, ns=(time_ns, time_ns))
    root = stores.kill(store, "killed")
    again = stores.open("killed")
    assert again.max_offset("Topic", 0) == 40
    again.close()
    assert stores.files(root) == stores.files(store.root)


def test_queues_are_truncated_with_a_log_that_lost_its_tail(stores, draft, drain, read_all):
    store = store_with_old_files(stores, draft, drain)
    store.close()
    cut = read_all(stores.open(), "Topic", 0)[10].commit_log_offset
    stores.opened[-1].close()
    (store.root / "abort").touch()
    base = cut - cut % 8192
    for path in sorted((store.root / "commitlog").iterdir()):
        if int(path.name) >= base:
            keep = cut - base if int(path.name) == base else 0
            path.write_bytes(path.read_bytes()[:keep].ljust(8192, b"\0"))
    again = stores.open()
    assert [again.max_offset("Topic", queue_id) for queue_id in range(3)] == [10, 10, 10]
    fill(again, draft, 100, start=30)
    drain(again)
    again.close()
    assert stores.files(store.root / "consumequeue") == stores.files(_twin(stores, draft, drain, 130))


def _twin(stores, draft, drain, count: int) -> Path:
    """Return the queue directory of an identical store that was not damaged."""
    twin = stores.open("twin")
    fill(twin, draft, count)
    drain(twin)
    twin.close()
    return twin.root / "consumequeue"


@pytest.fixture
def index_files_checked(monkeypatch) -> list[str]:
    """Give a list of the index files that are read from now on."""
    seen: list[str] = []
    restore = IndexFile.restore

    def restore_seen(self: IndexFile, snapshot: IndexSnapshot) -> str | None:
        seen.append(snapshot.name)
        return restore(self, snapshot)

    monkeypatch.setattr(IndexFile, "restore", restore_seen)
    return seen


def store_with_index(stores, draft, drain):
    store = stores.open()
    for number in range(100):
        store.append(draft(b"%d" % number, keys=f"k{number}", uniq=f"U{number}"))
    drain(store)
    age_derived_files(store.root)
    return store


def test_start_after_a_clean_shutdown_reads_no_index_file(stores, draft, drain, index_files_checked):
    store = store_with_index(stores, draft, drain)
    store.close()
    files = stores.files(store.root)
    again = stores.open()
    assert index_files_checked == []
    assert all(len(again.query_by_key("Topic", f"k{number}")) == 1 for number in range(100))
    again.close()
    assert stores.files(store.root) == files


def test_index_file_changed_since_the_checkpoint_is_repaired(stores, draft, drain, index_files_checked):
    store = store_with_index(stores, draft, drain)
    store.close()
    files = stores.files(store.root)
    path = sorted((store.root / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[167] ^= 0x40
    path.write_bytes(content)
    stores.open().close()
    assert index_files_checked == [path.name]
    assert stores.files(store.root) == files


def test_start_after_a_kill_checks_only_the_last_index_file(stores, draft, drain, index_files_checked):
    store = store_with_index(stores, draft, drain)
    make_checkpoint(store)
    for number in range(100, 110):
        store.append(draft(b"%d" % number, keys=f"k{number}", uniq=f"U{number}"))
    names = sorted(path.name for path in (store.root / "index").iterdir())
    root = stores.kill(store, "killed")  # the last ten records are not dispatched
    again = stores.open("killed")
    assert index_files_checked == names[-1:]
    assert all(len(again.query_by_key("Topic", f"k{number}")) == 1 for number in range(110))
    again.close()
    drain(store)
    assert stores.files(root) == stores.files(store.root)


def test_checkpoint_of_many_queues_takes_several_turns(stores, draft, drain, clock, monkeypatch):
    monkeypatch.setattr(checkpoints, "_QUEUES_PER_TURN", 30)
    store = stores.open(commit_log_file_bytes=1 << 16)
    fill(store, draft, 100, queues=100)
    drain(store)
    summary_before = (store.root / "raymq.derived").read_bytes()
    clock.advance(ms=5001)
    for turn in range(4):
        assert (store.root / "raymq.derived").read_bytes() == summary_before, turn
        fill(store, draft, 1, queues=100, start=turn)  # some queues change during the checkpoint
        drain(store)
    store.finish_background()
    assert (store.root / "raymq.derived").read_bytes() != summary_before
    again = stores.open(stores.kill(store, "killed").name, commit_log_file_bytes=1 << 16)
    assert len(list(again.queues())) == 100
    assert again.recovered.dispatched_from > 0
    assert [again.max_offset("Topic", queue_id) for queue_id in range(5)] == [2, 2, 2, 2, 1]


def test_file_mtime_is_looked_up_only_after_the_file_stops_changing(
    stores, draft, drain, clock, monkeypatch, units_read
):
    looked_up: list[str] = []
    settled = consume_queue.settled_time_ns
    store = stores.open(commit_log_file_bytes=1 << 16)

    def settled_time_ns(path: str) -> int:
        if path.startswith(f"{store.root}/"):  # brokers of other tests may run in this process
            looked_up.append(path)
        return settled(path)

    monkeypatch.setattr(consume_queue, "settled_time_ns", settled_time_ns)

    def checkpoint() -> None:
        clock.advance(ms=5001)
        store.advance()
        store.finish_background()

    for number in range(3):
        fill(store, draft, 6, queues=2, start=6 * number)
        drain(store)
        checkpoint()
    assert looked_up == []
    age_derived_files(store.root)
    checkpoint()  # nothing has changed, but the files are now old enough
    files = (store.root / "consumequeue").glob("*/*/0*")
    assert sorted(looked_up) == sorted(str(path) for path in files)
    checkpoint()
    assert len(looked_up) == 2
    units_read.clear()
    again = stores.open(stores.kill(store, "killed").name, commit_log_file_bytes=1 << 16)
    assert [again.max_offset("Topic", queue_id) for queue_id in range(2)] == [9, 9]


@pytest.mark.parametrize(("took_ms", "pause_ms"), [(100, 4_900), (700, 7_000), (60_000, 15_000)])
def test_pause_after_a_slow_checkpoint_is_longer(stores, draft, drain, clock, monkeypatch, took_ms, pause_ms):
    sync = checkpoints.sync_files

    def sync_files(*what: object) -> None:
        clock.advance(ms=took_ms)
        sync(*what)

    monkeypatch.setattr(checkpoints, "sync_files", sync_files)
    store = stores.open()

    def summary_after(wait_ms: int) -> bytes:
        clock.advance(ms=wait_ms)
        store.advance()
        store.finish_background()
        return (store.root / "raymq.derived").read_bytes()

    fill(store, draft, 30)
    drain(store)
    first = summary_after(5_001)
    fill(store, draft, 30, start=30)
    drain(store)
    assert summary_after(pause_ms - 1) == first
    assert summary_after(1) != first


def test_open_queue_files_are_limited(stores, draft, drain, read_all):
    store = stores.open(max_open_files=5, commit_log_file_bytes=1 << 16)
    fill(store, draft, 200, queues=100)
    drain(store)
    assert all(len(read_all(store, "Topic", queue_id)) == 2 for queue_id in range(100))
    opened = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert len([target for target in opened if target.startswith(f"{store.root}/consumequeue")]) <= 5


def test_failed_checkpoint_sync_stops_all_later_checkpoints(stores, draft, drain, clock, monkeypatch):
    store = stores.open()
    fill(store, draft, 30)
    drain(store)

    def lose(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "sync_files", lose)
        clock.advance(ms=5001)
        store.advance()
        store.finish_background()
    summary = (store.root / "raymq.derived").read_bytes()
    fill(store, draft, 30, start=30)
    drain(store)
    clock.advance(ms=5001)
    store.advance()
    store.finish_background()
    assert (store.root / "raymq.derived").read_bytes() == summary
    with pytest.raises(StoreError, match="derived files could not be made durable: restart"):
        store.close()
    assert (store.root / "abort").exists()
    again = stores.open()
    assert again.max_offset("Topic", 0) == 20


def test_topic_of_many_queues_can_be_deleted_and_recreated(stores, draft, drain):
    store = stores.open(commit_log_file_bytes=1 << 16)
    fill(store, draft, 200, queues=100)
    drain(store)
    assert store.delete_topic("Topic") == 100
    assert list(store.queues()) == []
    assert not (store.root / "consumequeue" / "Topic").exists()
    fill(store, draft, 100, queues=100)
    drain(store)
    shutil.rmtree(stores.directory / "killed", ignore_errors=True)
    again = stores.open(stores.kill(store, "killed").name, commit_log_file_bytes=1 << 16)
    assert [again.max_offset("Topic", queue_id) for queue_id in (0, 99)] == [1, 1]

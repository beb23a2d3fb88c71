"""Units for many queues may be written by another thread (a background write).

They are not visible before they are counted in, and none is lost, whatever happens in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from store.consumequeue.unit import UNIT_BYTES
from store.dispatch.queue_sink import ConsumeQueueSink
from store.index.index_service import IndexService
from store.kernels import unit_files
from store.store_errors import StoreError
from store.upkeep.maintenance import Maintenance
from store.upkeep.retention import Retention
from tests.eventually import LIMIT_S

QUEUES = 20
WRITE_UNITS = unit_files.write_units


@dataclass
class Writer:
    """Replaces the kernel that writes units; it blocks until `may_continue` is set."""

    may_continue: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    threads: list[str] = field(default_factory=list)
    write: Callable[..., int] = WRITE_UNITS

    def write_units(self, *arguments):
        self.threads.append(threading.current_thread().name)
        self.started.set()
        assert self.may_continue.wait(LIMIT_S)
        return self.write(*arguments)


@pytest.fixture
def writer(monkeypatch) -> Iterator[Writer]:
    """Block background writes until `may_continue` is set."""
    writer = Writer()
    monkeypatch.setattr(unit_files, "write_units", writer.write_units)
    yield writer
    writer.may_continue.set()


def fill(store, draft, number: int, queues: int = QUEUES) -> None:
    for queue_id in range(queues):
        store.append(draft(b"%d" % number, queue_id=queue_id, tags=f"t{number}", keys=f"k{number}"))


def offsets(store) -> set[int]:
    return {store.max_offset("Topic", queue_id) for queue_id in range(QUEUES)}


def bodies(read_all, store) -> list[list[bytes]]:
    return [[message.body for message in read_all(store, "Topic", queue_id)] for queue_id in range(QUEUES)]


EVERY_QUEUE = {("Topic", queue_id) for queue_id in range(QUEUES)}


@pytest.fixture
def crowded(stores, draft, drain, writer):
    """Give a store with one message in each queue, and more queue files than may be open."""
    store = stores.open(max_open_files=4, commit_log_file_bytes=1 << 16)
    store.await_messages(EVERY_QUEUE)
    for queue_id in range(QUEUES):  # two queues per step are written on the store's thread
        store.append(draft(b"0", queue_id=queue_id, tags="t0", keys="k0"))
        if queue_id % 2:
            writer.may_continue.set()
            drain(store)
    writer.may_continue.clear()
    writer.started.clear()
    writer.threads.clear()
    return store


@pytest.fixture
def busy(crowded, draft, writer):
    """Give the store while the second message of each queue is being written in the background."""
    store = crowded
    store.on_work_ended(writer.ended.set)
    fill(store, draft, 1)
    store.flush_now()
    assert store.advance() == []
    assert writer.started.wait(LIMIT_S)
    return store


def finish_write(store, writer) -> list:
    writer.may_continue.set()
    assert writer.ended.wait(LIMIT_S)
    return list(store.advance())


def test_background_units_are_visible_only_after_they_are_counted_in(read_all, writer, busy):
    assert writer.threads == ["store-units_0"]
    assert offsets(busy) == {1}
    assert busy.advance() == []
    assert busy.has_more_to_dispatch
    assert not busy.has_more_to_do  # another `advance` would achieve nothing yet
    arrivals = finish_write(busy, writer)
    assert {(each.queue_id, each.max_offset, len(each.tags_codes)) for each in arrivals} == {
        (queue_id, 2, 1) for queue_id in range(QUEUES)
    }
    assert bodies(read_all, busy) == [[b"0", b"1"]] * QUEUES
    assert not busy.has_more_to_dispatch
    assert len(busy.query_by_key("Topic", "k1")) == QUEUES


def test_appends_during_a_background_write_follow_it(draft, drain, read_all, writer, busy):
    fill(busy, draft, 2)
    assert busy.append(draft(b"3", queue_id=7)).queue_offset == 3
    busy.flush_now()
    assert busy.advance() == []
    assert offsets(busy) == {1}
    writer.may_continue.set()
    drain(busy)
    assert bodies(read_all, busy) == [
        [b"0", b"1", b"2", *([b"3"] if queue_id == 7 else [])] for queue_id in range(QUEUES)
    ]


def test_background_write_creates_new_queues(stores, draft, read_all, writer):
    store = stores.open()  # its descriptors are not full
    store.await_messages(EVERY_QUEUE)
    store.on_work_ended(writer.ended.set)
    fill(store, draft, 0)
    store.flush_now()
    assert store.advance() == []
    assert writer.started.wait(LIMIT_S)
    assert not (store.root / "consumequeue" / "Topic").exists()
    assert {each.max_offset for each in finish_write(store, writer)} == {1}
    fill(store, draft, 1)
    store.flush_now()
    assert {each.max_offset for each in store.advance()} == {2}  # their files are open now
    assert len(writer.threads) == 1
    assert bodies(read_all, store) == [[b"0", b"1"]] * QUEUES
    store.close()
    alone = stores.open("alone")
    for number in range(2):
        fill(alone, draft, number)
        alone.flush_now()
        alone.dispatch_now()
    alone.close()
    assert stores.files(store.root / "consumequeue") == stores.files(alone.root / "consumequeue")
    assert bodies(read_all, stores.open()) == [[b"0", b"1"]] * QUEUES


def test_truncate_to_zeroes_files_created_by_a_background_write(stores, draft, writer):
    store = stores.open()
    store.await_messages(EVERY_QUEUE)
    store.on_work_ended(writer.ended.set)
    fill(store, draft, 0)
    kept = store.positions.written
    fill(store, draft, 1)
    store.flush_now()
    assert store.advance() == []
    assert {each.max_offset for each in finish_write(store, writer)} == {2}
    store.truncate_to(kept, discard_confirmed=True)
    for queue_id in range(QUEUES):
        (file,) = (store.root / "consumequeue" / "Topic" / str(queue_id)).iterdir()
        assert file.read_bytes()[UNIT_BYTES:].strip(b"\0") == b""


def test_background_write_reports_a_queue_that_cannot_be_created(
    stores, draft, drain, read_all, clock, writer
):
    store = stores.open()
    store.await_messages(EVERY_QUEUE)
    store.on_work_ended(writer.ended.set)
    fill(store, draft, 0)
    store.flush_now()
    (store.root / "consumequeue" / "Topic").mkdir(parents=True)
    in_the_way = store.root / "consumequeue" / "Topic" / "3"
    in_the_way.write_text("not a directory")
    store.advance()
    assert {each.queue_id for each in finish_write(store, writer)} == {0, 1, 2}
    assert "consume queues or index cannot be written: File exists" in store.write_refusal
    in_the_way.unlink()
    clock.advance(ms=1000)
    drain(store)
    assert bodies(read_all, store) == [[b"0"]] * QUEUES


def test_units_of_few_queues_are_written_on_the_store_thread(draft, writer, busy):
    finish_write(busy, writer)
    fill(busy, draft, 2, queues=15)
    busy.flush_now()
    assert len(busy.advance()) == 15
    assert writer.threads[1:] == ["MainThread"]


def test_dispatch_now_waits_for_the_background_write(draft, read_all, writer, busy):
    fill(busy, draft, 2)
    busy.flush_now()
    writer.may_continue.set()
    busy.dispatch_now()
    arrivals = busy.advance()
    assert {each.max_offset for each in arrivals[:QUEUES]} == {2}
    assert {each.max_offset for each in arrivals[QUEUES:]} == {3}
    assert bodies(read_all, busy) == [[b"0", b"1", b"2"]] * QUEUES


def record_turns(monkeypatch, service: type, record: Callable[[], None]) -> None:
    """Call `record` in place of `service.turn`; not for stores of brokers that run on other threads."""

    def turn(_) -> None:
        if threading.current_thread() is threading.main_thread():
            record()

    monkeypatch.setattr(service, "turn", turn)


def test_no_checkpoint_or_cleaning_during_a_background_write(writer, busy, monkeypatch):
    turns = []
    record_turns(monkeypatch, Maintenance, lambda: turns.append("notes"))
    record_turns(monkeypatch, Retention, lambda: turns.append("cleans"))
    busy.advance()
    assert turns == []
    finish_write(busy, writer)
    assert turns[:2] == ["notes", "cleans"]


def test_maintenance_runs_between_consecutive_background_writes(draft, writer, busy, monkeypatch):
    fill(busy, draft, 2)
    busy.flush_now()
    turns = []
    record_turns(monkeypatch, Maintenance, lambda: turns.append(offsets(busy)))
    finish_write(busy, writer)
    assert turns == [{2}]
    assert busy.has_more_to_dispatch  # the next units are being written
    assert not busy.has_more_to_do


@pytest.mark.parametrize("end", ["delete_topic", "forget_topic", "truncate_to", "close"])
def test_operations_on_queues_wait_for_the_background_write(
    stores, draft, drain, read_all, writer, busy, monkeypatch, end
):
    place = busy.positions.dispatched
    finish = ConsumeQueueSink.finish

    def finish_with_the_writer(sink: ConsumeQueueSink) -> None:
        writer.may_continue.set()
        finish(sink)

    monkeypatch.setattr(ConsumeQueueSink, "finish", finish_with_the_writer)
    if end == "delete_topic":
        assert busy.delete_topic("Topic") == QUEUES
    elif end == "forget_topic":
        assert busy.forget_topic("Topic", lambda error: None) == QUEUES
    elif end == "truncate_to":
        busy.truncate_to(place, discard_confirmed=True)
        assert offsets(busy) == {1}
    else:
        busy.close()
        again = stores.open(max_open_files=4, commit_log_file_bytes=1 << 16)
        assert bodies(read_all, again) == [[b"0", b"1"]] * QUEUES
        return
    assert not busy.has_more_to_dispatch
    fill(busy, draft, 5)
    drain(busy)
    kept = [b"0"] if end == "truncate_to" else []
    assert bodies(read_all, busy) == [[*kept, b"5"]] * QUEUES


def test_full_disk_for_a_background_write_refuses_appends_and_recovers(
    draft, drain, read_all, clock, writer, busy
):
    path = busy.root / "consumequeue" / "Topic" / "5" / f"{0:020d}"
    kept = path.rename(path.with_name("kept"))
    path.symlink_to("/dev/full")
    assert {each.queue_id for each in finish_write(busy, writer)} == set(range(5))
    assert "cannot be written: No space left on device (make room on its disk)" in busy.write_refusal
    with pytest.raises(StoreError, match="No space left"):
        busy.append(draft())
    path.unlink()
    kept.rename(path)
    for queue_id in range(10, QUEUES):  # only four files stay open, so the file of queue 5 is closed
        read_all(busy, "Topic", queue_id)
    clock.advance(ms=1000)
    drain(busy)
    assert busy.write_refusal is None
    assert bodies(read_all, busy) == [[b"0", b"1"]] * QUEUES
    assert len(busy.query_by_key("Topic", "k1")) == QUEUES


def test_failing_index_write_fails_the_whole_step(
    crowded, draft, drain, read_all, clock, writer, monkeypatch
):
    store = crowded

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    fill(store, draft, 1)
    store.flush_now()
    writer.may_continue.set()
    with monkeypatch.context() as patched:
        patched.setattr(IndexService, "accept", fail)
        store.advance()
    assert "No space left" in store.write_refusal
    clock.advance(ms=1000)
    drain(store)
    assert bodies(read_all, store) == [[b"0", b"1"]] * QUEUES
    assert len(store.query_by_key("Topic", "k1")) == QUEUES


@pytest.mark.parametrize("written", [0, 1, QUEUES // 2, QUEUES])
def test_kill_during_a_background_write_loses_no_units(stores, read_all, writer, busy, written):
    def some(directory, file_bytes, log, groups, chosen, is_new, units):
        return WRITE_UNITS(directory, file_bytes, log, groups, chosen[:written], is_new[:written], units)

    writer.write = some
    writer.may_continue.set()
    assert writer.ended.wait(LIMIT_S)
    stores.kill(busy, "killed")  # before they are counted in
    again = stores.open("killed", max_open_files=4, commit_log_file_bytes=1 << 16)
    assert bodies(read_all, again) == [[b"0", b"1"]] * QUEUES


def test_finished_background_write_releases_the_log_files(writer, busy):
    def mapped() -> bool:
        return f"{busy.root}/commitlog" in Path("/proc/self/maps").read_text()

    assert mapped()
    finish_write(busy, writer)
    busy.close()
    assert not mapped()


def test_arrivals_of_a_step_finished_by_forget_topic_are_returned(writer, busy):
    writer.may_continue.set()
    assert busy.forget_topic("Other", lambda error: None) == 0
    assert {(each.queue_id, each.max_offset) for each in busy.advance()} == {
        (queue_id, 2) for queue_id in range(QUEUES)
    }
    assert busy.advance() == []

"""Truncation of the log of a replica: what it invalidates, where it may cut, and what it leaves on disk."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from store.commitlog.positions import Positions
from store.store_errors import StoreError
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_files import REBUILDING, TIMER_TOPIC
from tests.faults.power import PowerLossDisk


def test_truncation_invalidates_the_flush_job_in_flight(stores, draft):
    """Bytes written after a truncation were never synced by a flush that began before it."""
    store = stores.open(flush="sync")
    store.append(draft(b"1"))
    store.flush_now()
    cut = store.append(draft(b"2" * 500)).physical_offset
    job = store.flush_job()
    job.run()
    store.truncate_to(cut)
    store.append(draft(b"3" * 100))
    store.flush_done(job)
    assert store.positions.flushed == cut
    store.flush_now()
    assert store.positions.flushed == store.positions.written


def test_flush_begins_anew_after_a_truncation_without_waiting_for_the_old_job(stores, draft):
    store = stores.open(flush="sync")
    cut = store.append(draft(b"1")).physical_offset
    old = store.flush_job()
    store.truncate_to(cut)
    store.append(draft(b"2"))
    new = store.flush_job()
    assert new is not None
    old.run()
    store.flush_done(old)
    assert store.flush_job() is None  # the new job is still in flight
    new.run()
    store.flush_done(new)
    assert store.positions.flushed == store.positions.written


def test_truncation_inside_a_record_is_refused(stores, draft, drain, read_all):
    store = stores.open()
    first = store.append(draft(b"1" * 100))
    second = store.append(draft(b"2" * 100))
    drain(store)
    for offset in (first.physical_offset + 10, second.physical_offset - 1, second.physical_offset + 1):
        with pytest.raises(StoreError, match=f"cannot truncate to {offset:,}: no record begins there"):
            store.truncate_to(offset)
    assert len(read_all(store)) == 2
    for offset in (store.positions.written, second.physical_offset, first.physical_offset):
        store.truncate_to(offset, discard_confirmed=True)
        assert store.positions.written == offset


def test_incomplete_record_of_another_replica_may_be_truncated(stores, draft):
    source, copy = stores.open("source"), stores.open("copy")
    cut = source.append(draft(b"1")).size_bytes
    source.append(draft(b"2" * 300))
    data = next((source.root / "commitlog").iterdir()).read_bytes()[: source.positions.written]
    copy.append_raw(0, data[:-10])
    with pytest.raises(StoreError, match="no record begins there"):
        copy.truncate_to(copy.positions.written)
    copy.truncate_to(cut, discard_confirmed=True)
    assert copy.append(draft(b"own")).physical_offset == cut


def test_blank_end_of_a_file_may_be_truncated(stores, draft):
    store = stores.open()
    end = store.append(draft(b"1" * 5000)).size_bytes
    store.append(draft(b"2" * 5000))
    store.truncate_to(end, discard_confirmed=True)
    assert store.append(draft(b"3")).physical_offset == end


def test_records_after_a_truncated_incomplete_record_are_dispatched(stores, draft, drain, read_all):
    source, copy = stores.open("source"), stores.open("copy")
    for store in (source, copy):
        store.append(draft(b"1"))
        drain(store)
    cut = source.positions.written
    source.append(draft(b"2" * 300))
    data = next((source.root / "commitlog").iterdir()).read_bytes()
    copy.append_raw(cut, data[cut : source.positions.written - 10])
    drain(copy)
    assert not copy.has_more_to_dispatch
    copy.truncate_to(cut, discard_confirmed=True)
    copy.append(draft(b"3" * 290))
    copy.confirm()
    assert copy.has_more_to_dispatch
    drain(copy)
    assert [message.body for message in read_all(copy)] == [b"1", b"3" * 290]


class _WorstCase(random.Random):
    """Power loss keeps no name and no page that is not durable."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 0.999


def test_power_loss_never_brings_back_a_truncated_tail(stores, draft, drain, monkeypatch):
    """The removal of later files is durable before the file of the cut is zeroed.

    Otherwise the recovery would find the records of the later files after a hole, and keep them.
    """
    store = stores.open(flush="sync")
    cut = 0
    for number in range(8):
        result = store.append(draft(b"%d" % number * 3000))
        cut = result.physical_offset if number == 1 else cut
    drain(store)
    disk = PowerLossDisk(store.root, _WorstCase(), monkeypatch)
    images: list[Path] = []
    numbers = count()  # other threads sync too
    for name in ("fsync", "fdatasync"):

        def cut_after(descriptor: int, sync: Callable[[int], None]) -> None:
            sync(descriptor)
            images.append(disk.cut(store.root.with_name(f"cut-{next(numbers)}")))

        monkeypatch.setattr(os, name, partial(cut_after, sync=getattr(os, name)))
    store.truncate_to(cut, discard_confirmed=True)
    monkeypatch.undo()
    disk.close()
    ends = []
    for image in images:
        again = stores.open(image.name)
        assert not again.holes, image.name
        ends.append(again.positions.written)
        again.close()
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == cut


def test_failed_sync_of_a_truncation_makes_the_store_read_only(stores, draft, drain, monkeypatch):
    store = stores.open()
    store.append(draft(b"1"))
    cut = store.append(draft(b"2")).physical_offset
    drain(store)

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreError, match=r"truncation to .* failed: Input/output error"):
        store.truncate_to(cut, discard_confirmed=True)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="restart the broker"):
        store.append(draft(b"3"))


def test_truncated_append_is_abandoned_and_never_confirmed_by_later_bytes(stores, draft):
    store = stores.open(flush="sync")
    calls: list[StoreError | None] = []
    result = store.append(draft(b"1"))
    end = result.physical_offset + result.size_bytes
    store.on_confirmed(end, calls.append)
    store.truncate_to(result.physical_offset, discard_confirmed=True)
    assert "can no longer be confirmed" in str(calls[0])
    store.append(draft(b"2" * 500))
    store.flush_now()
    store.advance()
    assert len(calls) == 1


def test_abandoned_appends_get_the_error_and_the_store_stays_writable(stores, draft):
    store = stores.open(flush="sync")
    calls: list[StoreError | None] = []
    store.append(draft(b"1"))
    store.on_confirmed(store.positions.written, calls.append)
    store.flush_now()
    store.append(draft(b"2"))
    store.on_confirmed(store.positions.written, calls.append)
    error = StoreError("broker-a-1 is the master now")
    store.abandon_unconfirmed(error)
    assert calls == [None, error]
    store.append(draft(b"3"))


class _Reported:
    """Confirms the position that replica 1 reported."""

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        return replicas.get(1, 0)


def test_truncation_below_the_confirmed_position_is_refused(stores, draft, read_all):
    store = stores.open(confirm=_Reported())
    first, second, third = (store.append(draft(b"%d" % number)).physical_offset for number in range(3))
    store.positions.acknowledge(1, third)
    store.dispatch_now()
    for offset in (first, second):
        with pytest.raises(StoreError, match=f"cannot truncate to {offset:,}: .*confirmed up to {third:,}"):
            store.truncate_to(offset)
    assert store.positions.written > third
    store.truncate_to(third)
    assert store.positions.written == third
    assert len(read_all(store)) == 2
    store.truncate_to(second, discard_confirmed=True)
    assert store.positions.confirmed == second
    assert len(read_all(store)) == 1


def test_discarded_confirmed_records_rewind_the_progress_of_the_timer(stores, draft):
    """Its files have units of records that no longer exist; other messages may get their queue offsets."""
    store = stores.open()
    offsets = [store.append(draft(b"timer", topic=TIMER_TOPIC, queue_id=0)).physical_offset for _ in range(5)]
    store.dispatch_now()
    path = store.root / "config" / "timercheck"
    path.parent.mkdir()
    TimerCheckpoint(1_700_000_000_000, 520, 5).write(path)
    store.truncate_to(store.positions.written)
    assert TimerCheckpoint.read(path).queue_offset == 5
    store.truncate_to(offsets[2], discard_confirmed=True)
    saved = TimerCheckpoint.read(path)
    assert (saved.queue_offset, saved.log_flush_position) == (2, REBUILDING)
    path.write_bytes(b"damaged")
    store.truncate_to(offsets[1], discard_confirmed=True)
    assert path.read_bytes() == b"damaged"

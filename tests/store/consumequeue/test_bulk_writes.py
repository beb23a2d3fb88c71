"""Units for queues whose files are not open are written in bulk.

Files, errors and recovery are the same as with single writes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from store.kernels import unit_files
from store.store_errors import StoreError

QUEUES = 12
WRITE_UNITS = unit_files.write_units


def fill(store, draft, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        for queue_id in range(QUEUES):
            store.append(draft(b"%d" % number, queue_id=queue_id, tags=f"t{number}"))


@pytest.fixture
def bulk_writes(monkeypatch) -> list[int]:
    """Give a list with the number of queues written by each bulk write."""
    counts: list[int] = []

    def write_units(*arguments):
        counts.append(WRITE_UNITS(*arguments))
        return counts[-1]

    monkeypatch.setattr(unit_files, "write_units", write_units)
    return counts


def bodies(read_all, store) -> list[list[bytes]]:
    return [[message.body for message in read_all(store, "Topic", queue_id)] for queue_id in range(QUEUES)]


@pytest.fixture
def crowded(stores, draft, drain, bulk_writes):
    """Give a store with one message in each queue, and more queue files than may be open."""
    store = stores.open(max_open_files=4, commit_log_file_bytes=1 << 16)
    store.await_messages({("Topic", queue_id) for queue_id in range(QUEUES)})
    for queue_id in range(QUEUES):  # one queue per step is not written in bulk
        store.append(draft(b"0", queue_id=queue_id, tags="t0"))
        drain(store)
    assert bulk_writes == []
    return store


def test_bulk_write_produces_the_same_files_as_single_writes(
    stores, draft, drain, read_all, bulk_writes, crowded, monkeypatch
):
    alone = stores.open("alone", commit_log_file_bytes=1 << 16)
    fill(alone, draft, 1)
    drain(alone)
    for number in range(1, 45, 4):  # across several queue files
        for store in (crowded, alone):
            fill(store, draft, 4, start=number)
            drain(store)
    assert sum(bulk_writes) > QUEUES * 5
    assert bodies(read_all, crowded) == [[b"%d" % number for number in range(45)]] * QUEUES
    opened = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert len([path for path in opened if path.startswith(f"{crowded.root}/consumequeue")]) <= 4
    for store in (crowded, alone):
        store.close()
    assert stores.files(crowded.root / "consumequeue") == stores.files(alone.root / "consumequeue")
    monkeypatch.setattr(unit_files, "write_units", None)
    again = stores.open(max_open_files=4, commit_log_file_bytes=1 << 16)
    assert bodies(read_all, again) == [[b"%d" % number for number in range(45)]] * QUEUES


def test_bulk_write_reports_arrivals_of_every_queue(draft, bulk_writes, crowded):
    fill(crowded, draft, 2, start=1)
    crowded.flush_now()
    arrivals = crowded.advance()
    assert bulk_writes == [QUEUES]
    assert {(each.queue_id, each.max_offset) for each in arrivals} == {
        (number, 3) for number in range(QUEUES)
    }
    assert all(len(each.tags_codes) == 2 for each in arrivals)


def close_file_of_queue_5(store, read_all) -> None:
    """Read as many other queues as files may be open."""
    for queue_id in range(6, QUEUES):
        read_all(store, "Topic", queue_id)


def test_full_disk_for_one_queue_of_a_bulk_write_refuses_appends(
    draft, drain, read_all, clock, bulk_writes, crowded
):
    path = crowded.root / "consumequeue" / "Topic" / "5" / f"{0:020d}"
    kept = path.rename(path.with_name("kept"))
    path.symlink_to("/dev/full")
    close_file_of_queue_5(crowded, read_all)
    fill(crowded, draft, 1, start=1)
    crowded.flush_now()
    assert {each.queue_id for each in crowded.advance()} == set(range(5))
    assert bulk_writes == [5]
    assert "cannot be written: No space left on device (make room on its disk)" in crowded.write_refusal
    assert [crowded.max_offset("Topic", queue_id) for queue_id in range(QUEUES)] == [2] * 5 + [1] * 7
    with pytest.raises(StoreError, match="No space left"):
        crowded.append(draft())
    path.unlink()
    kept.rename(path)
    close_file_of_queue_5(crowded, read_all)
    clock.advance(ms=1000)
    drain(crowded)
    assert crowded.write_refusal is None
    assert bodies(read_all, crowded) == [[b"0", b"1"]] * QUEUES


@pytest.mark.parametrize("written", range(QUEUES + 1))
def test_kill_between_files_of_a_bulk_write_loses_no_units(
    stores, draft, read_all, crowded, monkeypatch, written
):
    fill(crowded, draft, 1, start=1)
    crowded.flush_now()

    def killed(directory, file_bytes, log, groups, chosen, is_new, units):
        WRITE_UNITS(directory, file_bytes, log, groups, chosen[:written], is_new[:written], units)
        stores.kill(crowded, "killed")
        return 0

    monkeypatch.setattr(unit_files, "write_units", killed)
    crowded.advance()
    again = stores.open("killed", max_open_files=4, commit_log_file_bytes=1 << 16)
    assert bodies(read_all, again) == [[b"0", b"1"]] * QUEUES
    again.close()
    crowded.close()
    assert stores.files(again.root / "consumequeue") == stores.files(crowded.root / "consumequeue")

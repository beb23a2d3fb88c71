"""A queue with a gap of fillers for lost messages: searches and truncation return correct results."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.store.checkpoints import make_checkpoint
from tests.store.commitlog.test_holes import damage, messages

LOST = range(40, 60)
BODY_BYTES = 300


@pytest.fixture
def gapped(stores, clock, draft, drain, read_all):
    """Give a store whose messages 40 to 59 of 100 are lost, and the messages it had before.

    The messages are in one queue and were stored one second apart.
    """
    store = stores.open("before")
    for number in range(100):
        clock.advance(ms=1000)
        store.append(draft(b"%02d" % number * (BODY_BYTES // 2)))
    drain(store)
    before = messages(store, read_all)
    store.close()
    root = stores.directory / "before"
    for number in LOST:
        damage(root, before[number].commit_log_offset, bytes(8))
    shutil.rmtree(root / "consumequeue")
    (root / "raymq.derived").unlink()
    store = stores.open("before", file_reserved_time_h=0)
    assert messages(store, read_all) == before[:40] + before[60:]
    return store, before


def test_offset_by_timestamp_skips_gaps(gapped):
    store, before = gapped
    kept = before[: LOST.start] + before[LOST.stop :]
    for message in before:
        when = message.store_timestamp
        lower = store.offset_by_timestamp("Topic", 0, when)
        assert lower == next(each.queue_offset for each in kept if each.store_timestamp >= when)
        upper = store.offset_by_timestamp("Topic", 0, when, upper=True)
        assert upper == max(each.queue_offset for each in kept if each.store_timestamp <= when)


def test_retention_before_a_gap_keeps_the_messages_before_the_gap(gapped, stores, drain, clock, read_all):
    store, before = gapped
    for path in (store.root / "commitlog").iterdir():
        is_old = path.name == f"{0:020d}"
        os.utime(path, (0, 0) if is_old else (clock.wall_ms() // 1000 + 10**6,) * 2)
    make_checkpoint(store)
    store.retention.delete_expired()
    for _ in range(12):
        store.advance()
        store.retention.finish()
        clock.advance(store.settings.delete_files_interval_ms)
    kept = [m for m in before[:40] + before[60:] if m.commit_log_offset >= store.positions.min]
    assert store.positions.min == 8192
    assert kept[0].queue_offset < 40
    assert messages(store, read_all) == kept
    store.close()
    again = stores.open("before")
    assert messages(again, read_all) == kept


def test_truncate_to_before_a_gap_removes_the_gap(gapped, draft, drain, read_all):
    store, before = gapped
    store.truncate_to(before[30].commit_log_offset, discard_confirmed=True)
    assert store.max_offset("Topic", 0) == 30
    assert messages(store, read_all) == before[:30]
    assert store.append(draft(b"new")).queue_offset == 30
    drain(store)
    assert len(messages(store, read_all)) == 31


def test_queue_with_lost_first_messages_begins_at_the_first_existing_one(
    stores, draft, drain, read_all, clock
):
    store = stores.open()
    for number in range(30):
        clock.advance(ms=1)
        store.append(draft(b"%02d" % number * 50))
    drain(store)
    before = messages(store, read_all)
    store.close()
    for message in before[:7]:
        damage(store.root, message.commit_log_offset, bytes(8))
    shutil.rmtree(store.root / "consumequeue")
    (store.root / "raymq.derived").unlink()
    for _ in range(2):  # first rebuilt by dispatch, then loaded from its snapshot
        store = stores.open()
        assert store.min_offset("Topic", 0) == 7
        assert messages(store, read_all) == before[7:]
        store.close()


def test_queue_truncated_to_its_beginning_keeps_its_next_offset(stores, draft, drain, clock):
    """The queue lost its first files to retention; offsets continue after them, also after a restart."""
    store = stores.open(file_reserved_time_h=0)
    for number in range(100):
        store.append(draft(b"%02d" % number * 150))
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
    assert first > 20  # the first file of units is deleted
    store.truncate_to(store.positions.min, discard_confirmed=True)
    assert store.max_offset("Topic", 0) == first
    store.close()
    again = stores.open()
    assert again.append(draft(b"new")).queue_offset == first

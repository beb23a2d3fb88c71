"""A damaged record that valid records follow is a hole, not the end of the log: nothing is truncated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.commitlog.commit_log import CommitLog
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import Positions
from store.message.batch import encode_batch
from store.message.message import Message, MessageExt
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.recovery.tail import find_tail
from store.store_settings import StoreSettings
from store.tools.dump import dump
from store.tools.rebuild import rebuild
from tests.conftest import ClockAtRest
from tests.store.conftest import OWNER, SMALL, a_draft, all_messages

FILE_BYTES = 8192
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def fill(store, draft: Callable[..., RecordDraft], count: int = 100) -> None:
    for number in range(count):
        store.append(draft(b"%d " % number * 20, queue_id=number % 3, keys=f"k{number}", tags="T"))


def messages(store, read_all) -> list[MessageExt]:
    found = [message for topic, queue_id in store.queues() for message in read_all(store, topic, queue_id)]
    return sorted(found, key=lambda message: message.commit_log_offset)


def damage(root: Path, position: int, content: bytes) -> None:
    path = root / "commitlog" / f"{position - position % FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(position % FILE_BYTES)
        file.write(content)


def log_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


def remove_derived_files(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "raymq.derived").unlink()


@pytest.fixture
def filled(stores, draft, drain, read_all) -> tuple[Path, list[MessageExt]]:
    """Return the directory of a killed store with three log files, and its messages."""
    store = stores.open()
    fill(store, draft)
    drain(store)
    return stores.kill(store, "killed"), messages(store, read_all)


def test_zeroed_range_is_reported_as_hole_with_position_and_size(stores, filled, read_all):
    root, before = filled
    (root / "raymq.derived").unlink()
    first, last = before[10], before[14]
    end = last.commit_log_offset + last.store_size
    damage(root, first.commit_log_offset, bytes(end - first.commit_log_offset))
    store = stores.open("killed")
    [hole] = store.holes
    assert (hole.position, hole.size_bytes) == (first.commit_log_offset, end - first.commit_log_offset)
    assert messages(store, read_all) == before[:10] + before[15:]
    assert store.skipped > 0


@pytest.mark.parametrize("place", [0, 4, 100], ids=["size", "magic", "body"])
def test_queue_offsets_after_a_hole_survive_restarts_and_rebuild(
    stores, filled, draft, drain, read_all, place
):
    root, before = filled
    damage(root, before[40].commit_log_offset + place, b"\xff")
    remove_derived_files(root)
    expected = before[:40] + before[41:]
    for _ in range(2):
        store = stores.open("killed")
        assert messages(store, read_all) == expected
        assert [hole.position for hole in store.holes] == [before[40].commit_log_offset]
        store.close()
    remove_derived_files(root)
    store = stores.open("killed")
    assert messages(store, read_all) == expected
    assert store.append(draft(queue_id=before[40].queue_id)).queue_offset == sum(
        message.queue_id == before[40].queue_id for message in before
    )
    drain(store)
    result = store.get_message("Topic", before[40].queue_id, before[40].queue_offset, 2, 1 << 20)
    assert (result.message_count, result.next_begin_offset) == (1, before[40].queue_offset + 2)
    assert store.skipped > 0


def test_dump_lists_all_records_and_marks_the_damaged_one(filled):
    root, before = filled
    damage(root, before[50].commit_log_offset, b"\0" * 30)
    (root / "raymq.derived").unlink()
    lines = {line["commitLogOffset"]: line for line in dump(root)}
    assert sorted(lines) == [message.commit_log_offset for message in before]
    damaged = [offset for offset, line in lines.items() if "damage" in line]
    assert damaged == [before[50].commit_log_offset]


def test_hole_may_be_the_last_record_of_a_file(stores, filled, read_all):
    root, before = filled
    last = [message for message in before if message.commit_log_offset < FILE_BYTES][-1]
    damage(root, last.commit_log_offset, b"\0" * last.store_size)
    (root / "raymq.derived").unlink()
    store = stores.open("killed")
    [hole] = store.holes
    assert (hole.position, hole.size_bytes) == (last.commit_log_offset, last.store_size)  # up to the blank
    assert len(messages(store, read_all)) == 99


def test_queue_offsets_of_lost_last_messages_are_not_reused(stores, draft, drain, read_all):
    store = stores.open()
    fill(store, draft, 30)
    store.append(draft(b"lost", queue_id=0))
    store.append(draft(b"kept", queue_id=1))
    drain(store)
    [lost] = [message for message in read_all(store) if message.body == b"lost"]
    store.close()
    damage(store.root, lost.commit_log_offset + 88, b"LOST")
    shutil.rmtree(store.root / "consumequeue")
    again = stores.open()
    assert again.append(draft(b"new", queue_id=0)).queue_offset == lost.queue_offset + 1


@pytest.mark.parametrize("way", ["start", "rebuild"])
def test_queue_offsets_of_a_completely_lost_queue_are_not_reused(stores, draft, drain, read_all, way):
    store = stores.open()
    fill(store, draft, 31)
    drain(store)
    lost = read_all(store, "Topic", 2)
    store.close()
    for message in lost:
        damage(store.root, message.commit_log_offset + 88, b"LOST")
    if way == "start":
        shutil.rmtree(store.root / "consumequeue")
    else:
        rebuild(store.root)
    again = stores.open()
    assert again.append(draft(b"new", queue_id=2)).queue_offset == 10
    drain(again)
    assert [message.body for message in read_all(again, "Topic", 2)] == [b"new"]
    assert len(messages(again, read_all)) == 22


@pytest.mark.parametrize("has_notes", [True, False])
def test_torn_batch_at_the_end_is_truncated(stores, draft, drain, read_all, has_notes):
    """The first 8 bytes of the batch were never written: its records were not acknowledged."""
    store = stores.open()
    fill(store, draft, 5)
    drain(store)
    if has_notes:  # the clean shutdown records that everything before the batch was confirmed
        store.close()
        store = stores.open()
    place = store.positions.written
    store.append_batch(RecordDraft("Topic", 0, b""), encode_batch([Message("Topic", b"x")] * 4))
    root = stores.kill(store, "killed")
    damage(root, place, bytes(8))
    again = stores.open("killed")
    assert again.positions.written == place
    assert list(again.holes) == []
    assert len(messages(again, read_all)) == 5


def test_zeroed_record_in_the_confirmed_log_is_a_hole(stores, draft, drain, read_all):
    """It looks like a torn batch, but the clean shutdown recorded that it was confirmed."""
    store = stores.open()
    fill(store, draft, 5)
    place = store.positions.written
    store.append_batch(RecordDraft("Topic", 0, b""), encode_batch([Message("Topic", b"x")] * 4))
    drain(store)
    store.close()  # records that all of this was confirmed
    last = store.positions.written - (store.positions.written - place) // 4
    damage(store.root, place, bytes(8))
    damage(store.root, last + 88, b"y")  # so that recovery does not start its scan at the last record
    (store.root / "abort").touch()
    shutil.rmtree(store.root / "consumequeue")
    again = stores.open()
    assert len(messages(again, read_all)) == 7


def test_zeroed_record_near_the_end_of_a_rocketmq_log_is_a_hole(clean_store):
    """RocketMQ writes the first bytes of a record first: zeros there are not a torn append."""
    rocketmq = clean_store()
    *_, victim, last = sorted(dump(rocketmq.root), key=lambda line: line["commitLogOffset"])
    path = rocketmq.root / "commitlog" / f"{victim['commitLogOffset'] // (1 << 20) * (1 << 20):020d}"
    with path.open("r+b") as file:
        file.seek(victim["commitLogOffset"] % (1 << 20))
        file.write(bytes(8))
    log = CommitLog(LogPaths(rocketmq.root), 1 << 20, Positions(), read_only=True)
    tail = find_tail(log, 0, check_crc=True, is_ours=False)
    log.close()
    assert tail.last_record == last["commitLogOffset"]


def test_hole_in_a_rocketmq_log_is_kept_and_stale_records_are_ignored(clean_store):
    """RocketMQ does not zero bytes after its log: a record older than its predecessor is stale."""
    rocketmq = clean_store()
    [*_, last] = sorted(dump(rocketmq.root), key=lambda line: line["commitLogOffset"])
    lines = list(dump(rocketmq.root))
    victim = lines[500]
    path = rocketmq.root / "commitlog" / f"{victim['commitLogOffset'] // (1 << 20) * (1 << 20):020d}"
    intact = path.read_bytes()
    place = victim["commitLogOffset"] % (1 << 20)
    path.write_bytes(intact[:place] + bytes(victim["storeSize"]) + intact[place + victim["storeSize"] :])
    log = CommitLog(LogPaths(rocketmq.root), 1 << 20, Positions(), read_only=True)
    tail = find_tail(log, 0, check_crc=True, is_ours=False)
    assert [(hole.position, hole.size_bytes) for hole in tail.holes] == [
        (victim["commitLogOffset"], victim["storeSize"])
    ]
    assert tail.last_record == last["commitLogOffset"]
    log.close()
    later = (1 << 60).to_bytes(8, "big")  # makes the record before the hole newer than all records after it
    before = max(
        line["commitLogOffset"] for line in lines if line["commitLogOffset"] < victim["commitLogOffset"]
    )
    with path.open("r+b") as file:
        file.seek(before % (1 << 20) + 56)
        file.write(later)
    log = CommitLog(LogPaths(rocketmq.root), 1 << 20, Positions(), read_only=True)
    tail = find_tail(log, 0, check_crc=True, is_ours=False)
    assert (tail.holes, tail.position) == ((), victim["commitLogOffset"])
    log.close()


@pytest.mark.parametrize("kind", ["huge", "negative", "lower", "zero", "one more"])
def test_damaged_queue_offset_loses_only_its_own_record(stores, filled, read_all, kind):
    """No CRC covers queueOffset: the queue must neither grow by terabytes nor lose other messages."""
    root, before = filled
    victim = before[60]
    value = {
        "huge": victim.queue_offset | 1 << 60,
        "negative": -5,
        "lower": 3,
        "zero": 0,
        "one more": victim.queue_offset + 1,
    }
    damage(root, victim.commit_log_offset + 20, value[kind].to_bytes(8, "big", signed=True))
    remove_derived_files(root)
    store = stores.open("killed")
    assert messages(store, read_all) == before[:60] + before[61:]
    assert store.max_offset("Topic", 0) == 34


@given(
    st.lists(
        st.tuples(
            st.integers(0, 99), st.floats(0, 1), st.integers(1, 300), st.sampled_from(["zero", "flip"])
        ),
        min_size=1,
        max_size=3,
    ),
)
@few
def test_damage_anywhere_loses_only_the_records_it_touches(tmp_path_factory, damages):
    root, before = _pristine(tmp_path_factory)
    pristine = log_bytes(root)
    for number, share, size, kind in damages:
        message = before[number]
        # Only fields whose damage is detectable: no CRC covers queue id, flag, queue offset, times, topic
        # and properties.
        position = message.commit_log_offset + (0 if share < 0.5 else 88)
        size = min(size, 12 if share < 0.5 else len(message.body))
        old = log_bytes(root)[position : position + size]
        damage(root, position, bytes(size) if kind == "zero" else bytes(byte ^ 0x41 for byte in old))
    damaged = log_bytes(root)
    touched = {
        number
        for number, message in enumerate(before)
        for place in [slice(message.commit_log_offset, message.commit_log_offset + message.store_size)]
        if damaged[place] != pristine[place]
    }
    log = CommitLog(LogPaths(root), FILE_BYTES, Positions(), read_only=True)
    end = before[-1].commit_log_offset + before[-1].store_size
    tail = find_tail(log, 0, check_crc=True, is_ours=True, confirmed=end)
    log.close()
    valid = [message for number, message in enumerate(before) if number not in touched]
    assert tail.records == len(valid)
    assert tail.position == valid[-1].commit_log_offset + valid[-1].store_size
    places = [(hole.position, hole.position + hole.size_bytes) for hole in tail.holes]
    for number in touched:
        message = before[number]
        inside = any(first <= message.commit_log_offset < stop for first, stop in places)
        assert inside or message.commit_log_offset >= tail.position
    lost = [message for message in before if any(a <= message.commit_log_offset < b for a, b in places)]
    assert {message.commit_log_offset for message in lost} <= {before[n].commit_log_offset for n in touched}


_STORE: dict[str, tuple[Path, list[MessageExt]]] = {}


def _pristine(factory) -> tuple[Path, list[MessageExt]]:
    """Return the directory of a new copy of a store, and its messages. The store is created once."""
    if "made" not in _STORE:
        root = factory.mktemp("pristine")
        clock = ClockAtRest()
        store = MessageStore.open(root, StoreSettings(**SMALL), OWNER, clock)
        for number in range(100):
            clock.advance(ms=number % 2)
            store.append(a_draft(b"%d " % number * 20, queue_id=number % 3, keys=f"k{number}", tags="T"))
        store.flush_now()
        store.advance()
        while store.has_more_to_dispatch:
            store.advance()
        _STORE["made"] = root, messages(store, all_messages)
        store.close()
    source, before = _STORE["made"]
    target = factory.mktemp("damaged") / "store"
    shutil.copytree(source, target)
    return target, before

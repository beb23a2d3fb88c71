"""A damaged record with sound ones behind it is a hole and not the end: nothing stored is cut off."""

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


def forget_derived(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "raymq.derived").unlink()


@pytest.fixture
def filled(stores, draft, drain, read_all) -> tuple[Path, list[MessageExt]]:
    """Give the files of a store of three log files that was killed, and its messages."""
    store = stores.open()
    fill(store, draft)
    drain(store)
    return stores.kill(store, "killed"), messages(store, read_all)


def test_a_zeroed_page_is_a_hole_with_a_place_and_a_length(stores, filled, read_all):
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
def test_a_hole_keeps_its_queue_offsets_through_restarts_and_a_rebuild(
    stores, filled, draft, drain, read_all, place
):
    root, before = filled
    damage(root, before[40].commit_log_offset + place, b"\xff")
    forget_derived(root)
    expected = before[:40] + before[41:]
    for _ in range(2):
        store = stores.open("killed")
        assert messages(store, read_all) == expected
        assert [hole.position for hole in store.holes] == [before[40].commit_log_offset]
        store.close()
    forget_derived(root)
    store = stores.open("killed")
    assert messages(store, read_all) == expected
    assert store.append(draft(queue_id=before[40].queue_id)).queue_offset == sum(
        message.queue_id == before[40].queue_id for message in before
    )
    drain(store)
    result = store.get_message("Topic", before[40].queue_id, before[40].queue_offset, 2, 1 << 20)
    assert (result.message_count, result.next_begin_offset) == (1, before[40].queue_offset + 2)
    assert store.skipped > 0


def test_the_dump_shows_all_others_and_says_what_is_damaged(filled):
    root, before = filled
    damage(root, before[50].commit_log_offset, b"\0" * 30)
    (root / "raymq.derived").unlink()
    lines = {line["commitLogOffset"]: line for line in dump(root)}
    assert sorted(lines) == [message.commit_log_offset for message in before]
    damaged = [offset for offset, line in lines.items() if "damage" in line]
    assert damaged == [before[50].commit_log_offset]


def test_the_last_record_of_a_file_may_be_the_hole(stores, filled, read_all):
    root, before = filled
    last = [message for message in before if message.commit_log_offset < FILE_BYTES][-1]
    damage(root, last.commit_log_offset, b"\0" * last.store_size)
    (root / "raymq.derived").unlink()
    store = stores.open("killed")
    [hole] = store.holes
    assert (hole.position, hole.size_bytes) == (last.commit_log_offset, last.store_size)  # up to the blank
    assert len(messages(store, read_all)) == 99


def test_the_offsets_of_lost_last_messages_are_not_given_again(stores, draft, drain, read_all):
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
def test_the_offsets_of_a_queue_of_which_nothing_is_left_are_not_given_again(
    stores, draft, drain, read_all, way
):
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
def test_a_batch_that_was_cut_short_is_no_hole(stores, draft, drain, read_all, has_notes):
    """Its records stand behind a head that was never written: nobody was told that they are stored."""
    store = stores.open()
    fill(store, draft, 5)
    drain(store)
    if has_notes:  # then it begins right where the confirmed ones end
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


def test_a_zeroed_record_among_confirmed_ones_is_a_hole_even_if_it_looks_like_a_batch_cut_short(
    stores, draft, drain, read_all
):
    store = stores.open()
    fill(store, draft, 5)
    place = store.positions.written
    store.append_batch(RecordDraft("Topic", 0, b""), encode_batch([Message("Topic", b"x")] * 4))
    drain(store)
    store.close()  # which notes that all of this was confirmed
    last = store.positions.written - (store.positions.written - place) // 4
    damage(store.root, place, bytes(8))
    damage(store.root, last + 88, b"y")  # so that the walk does not begin at it
    (store.root / "abort").touch()
    shutil.rmtree(store.root / "consumequeue")
    again = stores.open()
    assert len(messages(again, read_all)) == 7


def test_a_zeroed_record_near_the_end_of_a_log_of_rocketmqs_is_a_hole(clean_store):
    """RocketMQ writes a record's head first: what stands behind zeros there is no append cut short."""
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


def test_a_hole_in_a_log_of_rocketmqs_is_kept_apart_and_stale_records_are_not_taken_for_what_follows(
    clean_store,
):
    """RocketMQ leaves the bytes behind its end as they are: what is older than what precedes it is stale."""
    rocketmq = clean_store()
    [*_, last] = sorted(dump(rocketmq.root), key=lambda line: line["commitLogOffset"])
    lines = list(dump(rocketmq.root))
    victim = lines[500]
    path = rocketmq.root / "commitlog" / f"{victim['commitLogOffset'] // (1 << 20) * (1 << 20):020d}"
    sound = path.read_bytes()
    place = victim["commitLogOffset"] % (1 << 20)
    path.write_bytes(sound[:place] + bytes(victim["storeSize"]) + sound[place + victim["storeSize"] :])
    log = CommitLog(LogPaths(rocketmq.root), 1 << 20, Positions(), read_only=True)
    tail = find_tail(log, 0, check_crc=True, is_ours=False)
    assert [(hole.position, hole.size_bytes) for hole in tail.holes] == [
        (victim["commitLogOffset"], victim["storeSize"])
    ]
    assert tail.last_record == last["commitLogOffset"]
    log.close()
    later = (1 << 60).to_bytes(8, "big")  # the record before it was stored after all that follows
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
def test_a_damaged_queue_offset_costs_its_own_record_only(stores, filled, read_all, kind):
    """No CRC covers the field: a queue must not grow by terabytes, nor lose what it has."""
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
    forget_derived(root)
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
def test_damage_anywhere_costs_what_it_touches_and_nothing_else(tmp_path_factory, damages):
    root, before = _pristine(tmp_path_factory)
    pristine = log_bytes(root)
    for number, share, size, kind in damages:
        message = before[number]
        # Queue id, flag, queue offset, times, topic and properties are under no CRC: those are not touched.
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
    sound = [message for number, message in enumerate(before) if number not in touched]
    assert tail.records == len(sound)
    assert tail.position == sound[-1].commit_log_offset + sound[-1].store_size
    places = [(hole.position, hole.position + hole.size_bytes) for hole in tail.holes]
    for number in touched:
        message = before[number]
        inside = any(first <= message.commit_log_offset < stop for first, stop in places)
        assert inside or message.commit_log_offset >= tail.position
    lost = [message for message in before if any(a <= message.commit_log_offset < b for a, b in places)]
    assert {message.commit_log_offset for message in lost} <= {before[n].commit_log_offset for n in touched}


_STORE: dict[str, tuple[Path, list[MessageExt]]] = {}


def _pristine(factory) -> tuple[Path, list[MessageExt]]:
    """A fresh copy of one log; it is made once."""
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

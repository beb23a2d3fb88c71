"""Full consume queue files of an open store are compared with the log, verified and replaced."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.message_store import MessageStore
from store.recovery.summary import read_summary
from store.store_errors import StoreError
from store.tools.reindex.run import Repaired, repair
from store.tools.reindex.sealed import SealedFile, verify_sealed
from store.tools.reindex.store_files import files_of
from store.tools.verify import verify
from tests.eventually import eventually
from tests.store.tools.reindex.test_reindex import BackwardEngine, damage


@pytest.fixture
def filled(stores, draft, drain, clock) -> MessageStore:
    """Return an open store with four queues of 55 messages, all in its last checkpoint."""
    store = stores.open(checkpoint_interval_ms=1_000)
    for number in range(220):
        topic, queue_id = ("Other", 1) if number % 4 == 3 else ("Topic", number % 4)
        store.append(draft(b"%d " % number * 20, topic, queue_id, tags=f"t{number % 5}"))

    def is_noted() -> bool:
        clock.advance(ms=1_500)
        drain(store)
        summary = read_summary(store.root, store.identity.store_id)
        return summary is not None and summary.position == store.positions.written

    eventually(is_noted, "a checkpoint")
    return store


def swap_of(store: MessageStore) -> Callable[[SealedFile], str | None]:
    """Return a function that verifies and replaces a file as the broker does."""

    def replace(new: SealedFile) -> str | None:
        files = files_of(store.root, store.identity)
        try:
            store.queue_files.require_full(new.topic, new.queue_id, new.offset)
            verify_sealed(files, new, store.positions.dispatched)
            store.queue_files.replace(
                new.topic, new.queue_id, new.offset, new.path(files.new_queues), new.crc
            )
        except StoreError as error:
            return str(error)
        return None

    return replace


def run(store: MessageStore) -> Repaired:
    return repair(BackwardEngine(), store.root, swap_of(store))


def queue_file(store: MessageStore, topic: str, queue_id: int, offset: int) -> Path:
    return store.root / "consumequeue" / topic / str(queue_id) / f"{offset * 20:020d}"


def test_damaged_full_files_of_an_open_store_are_replaced(stores, filled, read_all, drain, draft):
    files = stores.files(filled.root)
    messages = read_all(filled, "Topic", 1)
    places = [("Topic", 1, 0), ("Topic", 1, 20), ("Other", 1, 20)]
    for topic, queue_id, offset in places:
        queue_file(filled, topic, queue_id, offset).write_bytes(b"\x01" * 400)
    done = run(filled)
    assert [file[:3] for file in done.replaced] == sorted(places)
    assert (done.queues, done.kept, done.damage) == (4, [], [])
    assert stores.files(filled.root) == files
    assert read_all(filled, "Topic", 1) == messages
    assert run(filled).replaced == []
    filled.append(draft(b"later", queue_id=1))
    drain(filled)
    filled.close()
    assert verify(filled.root).findings == []
    assert stores.open().recovered.records == 1


def test_killed_store_is_repaired_from_the_log_after_a_replacement(stores, filled, drain):
    """After a kill before the next checkpoint, raymq.derived still has the CRC of the damaged file."""
    files = stores.files(filled.root)
    queue_file(filled, "Topic", 0, 0).write_bytes(b"\x01" * 400)
    assert len(run(filled).replaced) == 1
    killed = stores.kill(filled, "killed")
    stores.open("killed").close()
    assert stores.files(killed) == files


def test_last_file_and_files_with_lost_records_are_kept(stores, filled, read_all):
    lost = read_all(filled, "Topic", 2)[25]
    damage(filled.root, lost.commit_log_offset + 90, b"\xff\xfe")
    for offset in (20, 40):
        queue_file(filled, "Topic", 2, offset).write_bytes(b"\x01" * 400)
    done = run(filled)
    ((kept, reason),) = done.kept
    assert (kept[:3], done.replaced) == (("Topic", 2, 20), [])
    assert "stop the broker and use `raymq reindex store`" in reason
    assert [finding.kind for finding in done.damage] == ["hole"]


def test_stopped_store_is_refused_by_a_live_repair(filled):
    filled.close()
    with pytest.raises(StoreError, match="no broker has this store open: use `raymq reindex store`"):
        repair(BackwardEngine(), filled.root, lambda _: None)


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "reason"),
    [
        ("Absent", 0, 0, "queue Absent-0 does not exist"),
        ("../Topic", 0, 0, "queue ../Topic-0 does not exist"),
        ("Topic", 9, 0, "queue Topic-9 does not exist"),
        ("Topic", 0, 10, "has no full file that begins at offset 10: its offsets are 0 to 55"),
        ("Topic", 0, 40, "has no full file that begins at offset 40"),
        ("Topic", 0, -20, "has no full file that begins at offset -20"),
        ("Topic", 0, 60, "has no full file that begins at offset 60"),
    ],
)
def test_only_existing_full_files_can_be_replaced(filled, topic, queue_id, offset, reason):
    with pytest.raises(StoreError, match=reason):
        filled.queue_files.require_full(topic, queue_id, offset)


def of_other_queue(units: bytearray, store: MessageStore) -> None:
    units[:] = queue_file(store, "Topic", 1, 0).read_bytes()


def exchanged(units: bytearray, _: MessageStore) -> None:
    units[100:140] = units[120:140] + units[100:120]


def beyond_the_log(units: bytearray, _: MessageStore) -> None:
    units[380:388] = (1 << 40).to_bytes(8, "big")


def inside_a_record(units: bytearray, _: MessageStore) -> None:
    units[107] += 1


def of_wrong_size(units: bytearray, _: MessageStore) -> None:
    units[111] += 1


def filler(units: bytearray, _: MessageStore) -> None:
    units[100:120] = (0).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)


def truncated(units: bytearray, _: MessageStore) -> None:
    del units[380:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (of_other_queue, "unit 0 does not point to the record that has its queue offset"),
        (exchanged, "unit 6 does not point"),
        (beyond_the_log, "unit 19 does not point"),
        (inside_a_record, "unit 5 does not point"),
        (of_wrong_size, "unit 5 does not point"),
        (filler, "unit 5 does not point"),
        (truncated, "the file has 380 bytes instead of 400"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_file_that_does_not_match_the_log_is_refused(
    filled, change: Callable[[bytearray, Any], None], reason: str
):
    old = queue_file(filled, "Topic", 0, 0).read_bytes()
    units = bytearray(old)
    change(units, filled)
    new = offered(filled, "Topic", 0, bytes(units))
    assert reason in (swap_of(filled)(new) or "")
    assert queue_file(filled, "Topic", 0, 0).read_bytes() == old


def test_file_of_another_topic_or_with_another_crc_is_refused(stores, filled):
    units = queue_file(filled, "Topic", 0, 0).read_bytes()
    new = offered(filled, "Topic", 0, units)
    assert "the CRC of the file is not 7" in (swap_of(filled)(new._replace(crc=7)) or "")
    assert swap_of(filled)(new) is None
    assert "does not exist: run the re-index again" in (swap_of(filled)(new) or "")
    other = offered(filled, "Topic", 1, queue_file(filled, "Other", 1, 0).read_bytes())
    assert "unit 0 points to a record of topic Other" in (swap_of(filled)(other) or "")


def offered(store: MessageStore, topic: str, queue_id: int, units: bytes) -> SealedFile:
    """Write a new file for the first file of a queue into the work directory."""
    new = SealedFile(topic, queue_id, 0, zlib.crc32(units))
    path = new.path(files_of(store.root, store.identity).new_queues)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(units)
    return new

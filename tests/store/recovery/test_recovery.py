"""A store that ended in any way opens again.

It has all complete records and no others, and its derived files are as they were.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.commitlog.mapped_file import HEAD_BYTES, MappedFile
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.record import RecordDraft
from store.store_errors import StoreError


def fill(store, draft: Callable[..., RecordDraft], count: int = 120, start: int = 0) -> None:
    for number in range(start, start + count):
        store.append(
            draft(
                b"%d" % number * (number % 7),
                queue_id=number % 3,
                keys=f"k{number % 11} x{number}",
                uniq=f"U{number}",
            )
        )


def bodies(store, read_all) -> list[bytes]:
    found = [message for topic, queue_id in store.queues() for message in read_all(store, topic, queue_id)]
    return [message.body for message in sorted(found, key=lambda message: message.commit_log_offset)]


Write = tuple[str, int, bytes]


@pytest.fixture
def writes(monkeypatch) -> list[Write]:
    """Give a list of all writes to the log from now on: (file, position, bytes).

    They are in the order of law 6: the first 8 bytes of a record are written last.
    """
    seen: list[Write] = []
    whole = MappedFile.write_at

    def write_at(self: MappedFile, place, buffers) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        seen.append((self.path.name, place + HEAD_BYTES, data[HEAD_BYTES:]))
        seen.append((self.path.name, place, data[:HEAD_BYTES]))
        whole(self, place, buffers)

    monkeypatch.setattr(MappedFile, "write_at", write_at)
    return seen


def cut_copies(stores, before: Path, after: Path, writes: list[Write], step: int = 1) -> Iterator[str]:
    """Yield names of copies of the store `before`, each with one more byte of `writes` in its log."""
    total = sum(len(data) for _, _, data in writes)
    for kept in [*range(0, total, step), *range(max(total - HEAD_BYTES, 1), total)]:
        target = stores.directory / f"cut-{kept}"
        shutil.copytree(before, target)
        remaining = kept
        for name, place, data in writes:
            path = target / "commitlog" / name
            if not path.exists():
                path.write_bytes(bytes((after / "commitlog" / name).stat().st_size))
            with path.open("r+b") as file:
                file.seek(place)
                file.write(data[:remaining])
            remaining -= len(data[:remaining])
        yield target.name
        shutil.rmtree(target)


def test_start_after_a_clean_shutdown_finds_identical_files(stores, draft, read_all, drain):
    store = stores.open()
    fill(store, draft)
    drain(store)
    expected = bodies(store, read_all)
    store.close()
    assert not (store.root / "abort").exists()
    files = stores.files(store.root)
    again = stores.open()
    assert bodies(again, read_all) == expected
    assert stores.files(store.root) == files
    assert again.append(draft(queue_id=0)).queue_offset == 40


def test_start_after_a_kill_recovers_all_written_messages(stores, draft, read_all):
    store = stores.open(flush="sync")
    fill(store, draft)  # the records are neither flushed nor dispatched
    stores.kill(store, "killed")
    again = stores.open("killed")
    assert len(bodies(again, read_all)) == 120
    assert again.positions.flushed == again.positions.dispatched == store.positions.written
    assert len(again.query_by_key("Topic", "U119")) == 1


def test_record_truncated_at_any_byte_is_dropped_and_earlier_ones_kept(stores, draft, read_all, writes):
    store = stores.open()
    store.append(draft(b"first"))
    store.append(draft(b"second"))
    before = stores.kill(store, "before")
    writes.clear()
    store.append(draft(b"torn", keys="k"))
    for name in cut_copies(stores, before, store.root, list(writes)):
        again = stores.open(name)
        assert bodies(again, read_all) == [b"first", b"second"], name
        assert again.append(draft(b"third")).queue_offset == 2
        again.close()


def test_batch_truncated_at_any_byte_is_dropped_completely(stores, draft, read_all, writes):
    store = stores.open()
    store.append(draft(b"first"))
    before = stores.kill(store, "before")
    writes.clear()
    batch = encode_batch([Message("Topic", b"%d" % n) for n in range(3)])
    store.append_batch(RecordDraft("Topic", 0, b""), batch)
    for name in cut_copies(stores, before, store.root, list(writes), step=7):
        again = stores.open(name)
        assert bodies(again, read_all) == [b"first"], name
        again.close()


def test_file_roll_interrupted_at_any_byte_is_recovered(stores, draft, read_all, writes):
    store = stores.open()
    store.append(draft(b"first"))
    store.append(draft(b"x" * 7000))
    before = stores.kill(store, "before")
    writes.clear()
    store.append(draft(b"y" * 3000))  # a blank, then the record in the next file
    for name in cut_copies(stores, before, store.root, list(writes), step=97):
        again = stores.open(name)
        assert len(bodies(again, read_all)) == 2, name
        assert again.append(draft(b"z" * 3000)).physical_offset == 8192
        again.close()


def test_garbage_after_the_end_of_the_log_is_zeroed(stores, draft, read_all):
    store = stores.open()
    fill(store, draft, 20)
    root = stores.kill(store, "killed")
    end = store.positions.written
    path = root / "commitlog" / f"{end - end % 8192:020d}"
    with path.open("r+b") as file:
        file.seek(end % 8192)
        file.write(random.Random(1).randbytes(8192 - end % 8192))
    again = stores.open("killed")
    assert len(bodies(again, read_all)) == 20
    assert not any(path.read_bytes()[end % 8192 :])
    assert path.stat().st_size == 8192


def test_stale_record_after_the_end_of_the_log_is_not_served(stores, draft, read_all):
    """RocketMQ leaves stale bytes after the end of its log; RayMQ zeroes them."""
    store = stores.open()
    results = [store.append(draft(b"%d" % number)) for number in range(5)]
    store.advance()
    store.truncate_to(results[2].physical_offset, discard_confirmed=True)
    store.append(draft(b"n"))  # ends exactly where the stale fourth record began
    again = stores.open(stores.kill(store, "killed").name)
    assert bodies(again, read_all) == [b"0", b"1", b"n"]


def test_preallocated_log_files_are_used_after_a_kill(stores, draft, drain, read_all):
    store = stores.open()
    fill(store, draft, 20)
    root = stores.kill(store, "killed")
    (root / "commitlog" / f"{8192:020d}").write_bytes(bytes(8192))
    (root / "commitlog" / f"{16384:020d}").write_bytes(bytes(8192))
    again = stores.open("killed")
    fill(again, draft, 100, start=20)
    drain(again)
    assert len(bodies(again, read_all)) == 120


def test_empty_last_log_file_is_removed_and_other_sizes_are_refused(stores, draft, read_all):
    store = stores.open()
    fill(store, draft, 20)
    store.close()
    (store.root / "commitlog" / f"{8192:020d}").touch()
    stores.open().close()
    stray = store.root / "commitlog" / f"{8192:020d}"
    assert not stray.exists()
    stray.write_bytes(b"short")
    with pytest.raises(
        StoreError, match=f"{8192:020d}: the file has 5 bytes, but commit_log_file_bytes is 8,192"
    ):
        stores.open()
    stray.rename(stray.with_name("stray.tmp"))
    with pytest.raises(StoreError, match=r"stray\.tmp: not a CommitLog file"):
        stores.open()


@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.parametrize(
    "lost",
    [
        "consumequeue", "index", "consumequeue/Topic/1", "raymq.derived", "checkpoint",
        "consumequeue/Topic/1/00000000000000000000", "consumequeue/Topic/1/00000000000000000400",
    ],
)  # fmt: skip
def test_lost_derived_files_are_rebuilt_identically(stores, draft, drain, end, lost):
    store = stores.open()
    fill(store, draft)
    drain(store)
    if end == "clean":
        store.close()
    root = stores.kill(store, "copy")
    files = stores.files(root)
    path = root / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    again = stores.open("copy")
    again.close()
    assert stores.files(root) == files


@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.parametrize("kind", ["consumequeue/Topic/0", "index"])
@pytest.mark.parametrize("damage", ["zeroed", "cut", "grown", "garbage", "one byte", "one page", "half"])
def test_damaged_derived_files_are_rebuilt_identically(stores, draft, drain, end, kind, damage):
    store = stores.open()
    fill(store, draft, 200)
    drain(store)
    if end == "clean":
        store.close()
    root = stores.kill(store, "copy")
    files = stores.files(root)
    path = sorted((root / kind).iterdir())[1]
    content = bytearray(path.read_bytes())
    if damage == "zeroed":
        content = bytearray(len(content))
    elif damage == "cut":
        del content[137:]
    elif damage == "grown":
        content += b"more"
    elif damage == "garbage":
        content = bytearray(random.Random(2).randbytes(len(content)))
    elif damage == "one byte":
        content[167] ^= 0x40
    elif damage == "one page":
        content[120:320] = bytes(200)
    else:
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    again = stores.open("copy")
    again.close()
    assert stores.files(root) == files


def test_records_not_dispatched_before_a_kill_are_dispatched_at_start(stores, draft, drain):
    whole = stores.open("whole")
    fill(whole, draft, 150)
    drain(whole)
    for dispatched in range(0, 150, 25):
        store = stores.open(f"store-{dispatched}")
        fill(store, draft, dispatched)
        drain(store)
        fill(store, draft, 150 - dispatched, start=dispatched)
        root = stores.kill(store, f"killed-{dispatched}")
        stores.open(root.name).close()
        assert stores.files(root) == stores.files(whole.root), dispatched


def test_partly_dispatched_step_is_completed_without_duplicates(stores, draft, drain):
    """After a kill during dispatch, some queues have their units; other queues and the index do not."""
    store = stores.open()
    fill(store, draft, 60)
    drain(store)
    before = stores.kill(store, "before")
    fill(store, draft, 60, start=60)
    drain(store)
    after = stores.kill(store, "after")
    for ahead in (("0",), ("1", "2"), ("0", "1", "2")):
        mixed = stores.directory / f"mixed-{len(ahead)}"
        shutil.copytree(before, mixed)
        shutil.copytree(after / "commitlog", mixed / "commitlog", dirs_exist_ok=True)
        for queue_id in ahead:
            shutil.copytree(
                after / "consumequeue/Topic" / queue_id,
                mixed / "consumequeue/Topic" / queue_id,
                dirs_exist_ok=True,
            )
        stores.open(mixed.name).close()
        assert stores.files(mixed) == stores.files(after), ahead


def test_index_insert_interrupted_by_a_kill_is_repaired(stores, draft, drain):
    store = stores.open(index_entries=1000)
    fill(store, draft, 60)
    drain(store)
    before = stores.kill(store, "before")
    fill(store, draft, 20, start=60)
    drain(store)
    after = stores.kill(store, "after")
    [new], [old] = (after / "index").iterdir(), (before / "index").iterdir()
    # Entries and slots are written, but the header that counts them is not.
    torn = old.read_bytes()[:40] + new.read_bytes()[40:]
    shutil.copytree(after / "commitlog", before / "commitlog", dirs_exist_ok=True)
    old.write_bytes(torn)
    stores.open("before", index_entries=1000).close()
    assert stores.files(before) == stores.files(after)


def test_units_beyond_the_end_of_the_log_are_removed(stores, draft, drain, read_all):
    store = stores.open()
    fill(store, draft, 30)
    drain(store)
    root = stores.kill(store, "killed")
    for path in (root / "commitlog").iterdir():  # the end of the log was not flushed, the queues were
        content = bytearray(path.read_bytes())
        content[2000:] = bytes(len(content) - 2000)
        path.write_bytes(content)
    again = stores.open("killed")
    kept = len(bodies(again, read_all))
    assert 0 < kept < 30
    assert sum(again.max_offset("Topic", queue_id) for queue_id in range(3)) == kept
    fill(again, draft, 30 - kept, start=kept)
    drain(again)
    again.close()
    store.close()
    assert stores.files(root) == stores.files(store.root)


def test_log_shorter_than_the_checkpoint_continues_after_its_last_record(stores, draft, drain, read_all):
    store = stores.open()
    fill(store, draft, 60)
    drain(store)
    expected = bodies(store, read_all)
    [position] = [m.commit_log_offset for m in read_all(store, "Topic", 0) if m.body == b"45" * 3]
    store.close()  # its checkpoint has the offset of the last record
    for path in (store.root / "commitlog").iterdir():
        kept = max(min(position - int(path.name), 8192), 0)
        path.write_bytes(path.read_bytes()[:kept] + bytes(8192 - kept))
    again = stores.open()
    assert again.positions.written == again.positions.dispatched == position
    assert bodies(again, read_all) == expected[:45]
    assert [again.max_offset("Topic", queue_id) for queue_id in range(3)] == [15, 15, 15]
    fill(again, draft, 5, start=45)
    drain(again)
    assert bodies(again, read_all) == expected[:50]


def test_lost_log_removes_all_queues(stores, draft, drain):
    store = stores.open()
    fill(store, draft, 30)
    drain(store)
    store.close()
    shutil.rmtree(store.root / "commitlog")
    again = stores.open()
    assert list(again.queues()) == []
    assert again.append(draft()).physical_offset == 0


def test_damaged_record_does_not_hide_later_records(stores, draft, drain, read_all):
    store = stores.open()
    fill(store, draft, 60)
    drain(store)
    expected = bodies(store, read_all)
    expected.remove(b"55555")
    [position] = [m.commit_log_offset for m in read_all(store, "Topic", 2) if m.body == b"55555"]
    root = stores.kill(store, "killed")
    (root / "raymq.derived").unlink()  # so that the whole log is walked
    path = root / "commitlog" / f"{0:020d}"
    valid = path.read_bytes()
    for place in (0, 3, 5, 11, 30, 84, 90):  # size, magic, CRC, physicalOffset, body length, body
        content = bytearray(valid)
        content[position + place] ^= 0x11
        path.write_bytes(content)
        again = stores.open("killed")
        assert bodies(again, read_all) == expected, place
        assert again.positions.written == store.positions.written
        assert again.append(draft(queue_id=0)).queue_offset == 20
        again.truncate_to(store.positions.written, discard_confirmed=True)
        again.close()
        (root / "raymq.derived").unlink()


def test_start_after_a_clean_shutdown_reads_only_the_last_record(stores, draft, drain):
    store = stores.open()
    fill(store, draft)
    drain(store)
    end = store.positions.written
    store.close()
    again = stores.open()
    assert again.recovered.dispatched_from == end
    assert again.recovered.records == 1  # the walk begins at the last record


def test_start_after_a_kill_walks_the_log_only_from_the_checkpoint(stores, draft, drain, clock):
    store = stores.open()
    fill(store, draft, 100)
    drain(store)
    checkpoint_position = store.positions.written
    clock.advance(ms=5001)
    store.advance()
    store.finish_background()
    fill(store, draft, 5, start=100)
    again = stores.open(stores.kill(store, "killed").name)
    assert again.recovered.records == 6
    assert again.recovered.dispatched_from <= checkpoint_position
    assert (
        again.recovered.dispatched_from > checkpoint_position - 500
    )  # the last record of the index is dispatched again

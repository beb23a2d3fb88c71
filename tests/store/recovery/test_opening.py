"""The components of a store are complete when they are constructed, and recovery returns what it found."""

from __future__ import annotations

import dataclasses

import pytest

from store.commitlog.flush import LogFlush
from store.common.background import thread_pool
from store.recovery.opening import open_parts, recover
from store.store_settings import StoreSettings
from tests.store.conftest import SMALL


@pytest.fixture
def damaged(stores, draft, drain):
    """Return the directory of a closed store whose second of three records is damaged."""
    store = stores.open()
    results = [store.append(draft(b"%d" % number * 100)) for number in range(3)]
    drain(store)
    store.close()
    with next((store.root / "commitlog").iterdir()).open("r+b") as file:
        file.seek(results[1].physical_offset + results[1].size_bytes - 50)
        file.write(b"\xff" * 20)
    (store.root / "raymq.derived").unlink()
    return store.root, results


def test_recover_returns_all_that_it_found(damaged, stores):
    root, results = damaged
    parts = open_parts(root, StoreSettings(**SMALL), stores.clock)
    recovered = recover(root, StoreSettings(**SMALL), parts, "", closed_cleanly=False, is_ours=True)
    end = results[2].physical_offset + results[2].size_bytes
    assert (recovered.records, recovered.tail.position, recovered.dispatched_from) == (2, end, 0)
    assert [hole.position for hole in recovered.holes.all] == [results[1].physical_offset]
    assert recovered.checkpoint.physic_msg_timestamp == results[2].store_timestamp
    assert not recovered.was_clean
    assert parts.positions.recovered == parts.positions.written == end
    for changed in (parts, recovered):
        name = dataclasses.fields(parts)[0].name if changed is parts else "tail"
        with pytest.raises(AttributeError):
            setattr(changed, name, None)
    parts.close()


def test_holes_are_forgotten_with_the_bytes_that_a_truncation_drops(damaged, stores, draft):
    root, results = damaged
    store = stores.open(root.name)
    assert [hole.position for hole in store.holes] == [results[1].physical_offset]
    store.truncate_to(results[1].physical_offset, discard_confirmed=True)
    assert not store.holes
    store.append(draft(b"new"))
    store.close()
    assert not stores.open(root.name).holes


def test_log_takes_every_file_from_the_allocator(stores, tmp_path):
    """The log of an open store has its allocator from the start: no file is allocated elsewhere."""
    made = []

    def counted(name: str, threads: int):
        made.append(name)
        return thread_pool(name, threads)

    settings = StoreSettings(**{**SMALL, "preallocate": True})
    (tmp_path / "store").mkdir()
    parts = open_parts(tmp_path / "store", settings, stores.clock, executors=counted)
    recover(tmp_path / "store", settings, parts, "", closed_cleanly=True, is_ours=True)
    assert "store-allocate" in made
    position = parts.log.reserve(4000)
    parts.log.write_at(position, [bytes(4000)])
    parts.allocator.look(parts.log.end)
    parts.allocator.finish()
    files = sorted(path.name for path in (tmp_path / "store" / "commitlog").iterdir())
    assert files == [f"{0:020d}", f"{8192:020d}"]
    assert list(parts.log.bases) == [0]
    assert LogFlush(parts.log).begin(0) is not None
    parts.allocator.close()
    parts.close()


def test_positions_know_which_bytes_this_process_wrote(stores, draft):
    store = stores.open()
    first = store.append(draft(b"1"))
    store.append(draft(b"2"))
    assert store.positions.recovered == 0
    end = store.positions.written
    store.close()
    again = stores.open()
    assert again.positions.recovered == end
    again.truncate_to(first.size_bytes, discard_confirmed=True)
    assert again.positions.recovered == first.size_bytes

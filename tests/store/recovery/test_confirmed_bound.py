"""Recovery dispatches only what was confirmed, which the confirm policy of a replica may learn later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from store.commitlog.positions import Positions
from store.recovery.checkpoint import StoreCheckpoint
from store.tools.info import store_info
from store.tools.rebuild import rebuild
from store.tools.reindex.run import reindex
from store.tools.verify import verify
from tests.store.checkpoints import make_checkpoint


class Reported:
    """Confirms the position that replica 1 reported."""

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        return replicas.get(1, 0)


@pytest.fixture
def partly_confirmed(stores, draft):
    """Give a store with two confirmed messages and one that is only flushed."""
    store = stores.open(confirm=Reported())
    store.append(draft(b"1"))
    store.append(draft(b"2"))
    store.positions.acknowledge(1, store.positions.written)
    store.append(draft(b"3"))
    store.flush_now()
    store.dispatch_now()
    return store


def test_injected_policy_sees_the_replicas(partly_confirmed):
    positions = partly_confirmed.positions
    assert positions.confirmed == positions.dispatched == positions.replicas[1] < positions.written
    assert partly_confirmed.max_offset("Topic", 0) == 2


@pytest.mark.parametrize("lost", [None, "raymq.derived"])
def test_recovery_dispatches_to_the_confirmed_bound(stores, draft, read_all, partly_confirmed, lost):
    positions = partly_confirmed.positions
    confirmed, end = positions.confirmed, positions.written
    second = len(partly_confirmed.record_at(0))
    partly_confirmed.close()
    if lost is not None:
        (partly_confirmed.root / lost).unlink()
    again = stores.open(confirm=Reported())
    # Without the summary, the bound is the last record in the checkpoint, which begins before its end.
    known = confirmed if lost is None else second
    assert (again.positions.dispatched, again.positions.confirmed) == (known, known)
    assert again.positions.written == end
    assert again.max_offset("Topic", 0) == (2 if lost is None else 1)
    fourth = again.append(draft(b"4"))
    assert fourth.queue_offset == 3
    again.positions.acknowledge(1, again.positions.written)
    again.dispatch_now()
    assert [message.body for message in read_all(again)] == [b"1", b"2", b"3", b"4"]


def test_killed_replica_keeps_its_confirmed_bound(stores, partly_confirmed):
    confirmed = partly_confirmed.positions.confirmed
    make_checkpoint(partly_confirmed)
    stores.kill(partly_confirmed, "killed")
    again = stores.open("killed", confirm=Reported())
    assert (again.positions.dispatched, again.max_offset("Topic", 0)) == (confirmed, 2)


def test_replica_with_an_unconfirmed_tail_is_valid(stores, draft, partly_confirmed):
    """Also after a restart in which nothing was confirmed; what is confirmed is compared as ever."""
    partly_confirmed.close()
    root = partly_confirmed.root
    for _ in range(2):
        report = verify(root)
        assert report.findings == []
        assert any("are not confirmed" in note for note in report.notes)
        stores.open(confirm=Reported()).close()
    queue = next((root / "consumequeue" / "Topic" / "0").iterdir())
    content = queue.read_bytes()
    queue.write_bytes(content[:28] + b"\0\0\0\7" + content[32:])
    assert any(found.path.startswith("consumequeue") for found in verify(root).findings)


def test_tail_without_units_is_a_finding_if_the_checkpoint_lists_it(stores, partly_confirmed):
    partly_confirmed.close()
    path = partly_confirmed.root / "checkpoint"
    checkpoint = StoreCheckpoint.read(path)
    later = replace(checkpoint, confirm_physical_offset=2 * checkpoint.confirm_physical_offset)
    path.write_bytes(later.encode())
    found = {each.path.partition("/")[0] for each in verify(partly_confirmed.root).findings}
    assert "consumequeue" in found


def test_replica_that_has_confirmed_nothing_is_valid(stores, draft):
    store = stores.open(confirm=Reported())
    store.append(draft(b"1"))
    store.flush_now()
    store.close()
    assert verify(store.root).findings == []


def test_stale_checkpoint_that_names_no_record_is_not_a_bound(stores, partly_confirmed):
    partly_confirmed.close()
    path = partly_confirmed.root / "checkpoint"
    checkpoint = StoreCheckpoint.read(path)
    moved = replace(checkpoint, confirm_physical_offset=checkpoint.confirm_physical_offset + 5)
    path.write_bytes(moved.encode())
    (partly_confirmed.root / "raymq.derived").unlink()
    assert stores.open(confirm=Reported()).positions.dispatched == 0


def test_local_policy_dispatches_to_the_end_of_the_log(stores, partly_confirmed):
    partly_confirmed.close()
    again = stores.open()
    assert again.positions.dispatched == again.positions.written
    assert again.max_offset("Topic", 0) == 3


class OneByOne:
    """Runs the tasks of a re-index in this process."""

    parallelism = 1

    def run(self, _name, tasks):
        return [task() for task in tasks]


@pytest.mark.parametrize("tool", [rebuild, partial(reindex, OneByOne())], ids=["rebuild", "reindex"])
def test_tools_derive_nothing_from_unconfirmed_records(stores, draft, read_all, partly_confirmed, tool):
    """Otherwise the next start would serve records that the group may truncate."""
    confirmed, end = partly_confirmed.positions.confirmed, partly_confirmed.positions.written
    partly_confirmed.close()
    root = partly_confirmed.root
    assert store_info(root).unconfirmed_bytes == end - confirmed
    tool(root)
    tool(root)
    assert store_info(root).unconfirmed_bytes == end - confirmed
    assert verify(root).findings == []
    again = stores.open(confirm=Reported())
    assert (again.positions.confirmed, again.max_offset("Topic", 0)) == (confirmed, 2)
    again.truncate_to(confirmed)
    again.append(draft(b"other"))
    again.positions.acknowledge(1, again.positions.written)
    again.dispatch_now()
    assert [message.body for message in read_all(again)] == [b"1", b"2", b"other"]


def test_rebuild_reports_the_bytes_that_it_leaves_to_the_group(partly_confirmed):
    end = partly_confirmed.positions.written
    unconfirmed = end - partly_confirmed.positions.confirmed
    partly_confirmed.close()
    report = rebuild(partly_confirmed.root).as_json()
    assert (report["logEnd"], report["unconfirmedBytes"]) == (end - unconfirmed, unconfirmed)


def test_store_without_replicas_has_no_unconfirmed_tail(stores, draft):
    store = stores.open()
    store.append(draft(b"1"))
    store.flush_now()
    stores.kill(store, "killed")
    root = stores.open("killed").root
    assert store_info(root).unconfirmed_bytes == 0

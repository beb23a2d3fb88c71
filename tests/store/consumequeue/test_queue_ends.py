"""A queue whose records were all deleted keeps its end, wherever its store lacks the files of the queue."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from store.consumequeue import removal
from store.dispatch.queue_changes import ENDS_FIELD, ENDS_PROPERTIES, META_TOPIC, deletion_properties
from store.message.hosts import Host
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.tools.rebuild import rebuild
from store.tools.verify import verify
from tests.store.checkpoints import make_checkpoint
from tests.store.tools.test_rebuild import killed_at

OLD = [pytest.param(27, id="inside a file"), pytest.param(40, id="at the beginning of a file")]
"""Numbers of records of Topic, whose consume queue files have 20 units."""


def log_ends(store: MessageStore, ends: dict[str, list[tuple[int, int]]], sender: Host | None = None) -> None:
    more = {} if sender is None else {"born_host": sender.packed}
    body = orjson.dumps({"full": "more", "entries": [], ENDS_FIELD: ends})
    store.append(RecordDraft(META_TOPIC, 0, body, ENDS_PROPERTIES, **more))


def all_ends(store: MessageStore) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for topic, queue_id in store.queues():
        if topic != META_TOPIC:
            found.setdefault(topic, []).append((queue_id, store.max_offset(topic, queue_id)))
    return found


def store_without_old_files(stores, draft, drain, name: str, count: int) -> MessageStore:
    """Give a store in whose log no record of Topic is left."""
    store = stores.open(name, delete_files_interval_ms=0)
    for number in range(count):
        store.append(draft(b"old %d" % number))
    while store.positions.written < 3 * store.settings.commit_log_file_bytes:
        store.append(draft(bytes(700), topic="Other"))
    drain(store)
    make_checkpoint(store)
    offset = 2 * store.settings.commit_log_file_bytes
    store.retention.delete_before(offset)
    for _ in range(2):
        store.advance()
    assert store.positions.min == offset
    return store


def leader_of(stores, draft, drain, count: int) -> MessageStore:
    """Give a store whose log begins after all records of Topic, and then has the ends of all queues."""
    leader = store_without_old_files(stores, draft, drain, "leader", count)
    log_ends(leader, all_ends(leader))
    leader.append(draft(b"after", topic="Other"))
    drain(leader)
    return leader


def copy(leader: MessageStore, follower: MessageStore) -> None:
    """Append what the follower lacks of the leader's log, which is to be its whole log if it is empty."""
    offset = max(follower.positions.written, leader.positions.min)
    while offset < leader.positions.written:
        data = bytes(leader.log_bytes(offset, leader.positions.written - offset))
        follower.append_raw(offset, data)
        offset += len(data)


@pytest.mark.parametrize("count", OLD)
def test_store_whose_log_begins_later_continues_its_queues(stores, draft, drain, read_all, count):
    leader, follower = leader_of(stores, draft, drain, count), stores.open("follower")
    copy(leader, follower)
    drain(follower)
    for name in ("follower", "killed", "without summary", "rebuilt"):
        assert (follower.min_offset("Topic", 0), follower.max_offset("Topic", 0)) == (count, count), name
        assert read_all(follower) == [], name
        assert all_ends(follower) == all_ends(leader), name
        if name == "follower":
            follower = stores.open(stores.kill(follower, "killed").name)
            continue
        follower.close()
        assert verify(follower.root).findings == [], name
        if name == "killed":
            (follower.root / "raymq.derived").unlink()
        else:
            rebuild(follower.root)
        follower = stores.open(follower.root.name)
    assert follower.append(draft(b"new")).queue_offset == count
    drain(follower)
    assert [(each.queue_offset, each.body) for each in read_all(follower)] == [(count, b"new")]


@pytest.mark.parametrize("count", OLD)
def test_append_after_a_reservation_gets_the_next_offset(stores, draft, drain, read_all, count):
    store = stores.open()
    assert not store.retention.reserve_ends({"Topic": [(0, count)]}, position=1), "it has not dispatched that"
    assert store.retention.reserve_ends({"Topic": [(0, count)]}, position=0)
    assert store.retention.ended_queues() == {"Topic": [(0, count)]}
    assert store.append(draft(b"new")).queue_offset == count
    drain(store)
    assert [each.queue_offset for each in read_all(store)] == [count]


@pytest.mark.parametrize("count", OLD)
def test_reserved_queue_is_trusted_at_the_next_start(stores, draft, drain, count):
    """Without a file at its end each start would dispatch the whole log again."""
    follower = stores.open("follower")
    copy(leader_of(stores, draft, drain, count), follower)
    drain(follower)
    end = follower.positions.written
    follower.close()
    assert stores.open("follower").recovered.dispatched_from == end


def test_ends_before_later_records_and_deletions_change_nothing(stores, draft, drain, read_all):
    """All of it is dispatched at once: units of a batch are written before its changes are applied."""
    leader, follower = leader_of(stores, draft, drain, 27), stores.open("follower")
    leader.append(draft(b"27"))
    drain(leader)
    leader.append(RecordDraft(META_TOPIC, 0, b"", deletion_properties(["Other"])))
    drain(leader)
    leader.append(draft(b"0", topic="Other"))
    drain(leader)
    log_ends(leader, all_ends(leader))
    log_ends(leader, {"Topic": [(0, 5)]})  # a replica that lags
    drain(leader)
    copy(leader, follower)
    drain(follower)
    assert all_ends(follower) == all_ends(leader) == {"Topic": [(0, 28)], "Other": [(0, 1)]}
    assert [each.body for each in read_all(follower)] == [b"27"]
    assert [each.body for each in read_all(follower, "Other")] == [b"0"]


def test_ends_that_a_client_sent_are_ignored(stores, draft, drain):
    store = stores.open()
    log_ends(store, {"Topic": [(0, 1000)]}, sender=Host("10.0.0.1", 1234))
    drain(store)
    assert store.max_offset("Topic", 0) == 0


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"queueEnds": {"T": 5}}', b'{"queueEnds": {"T": [[0, "x"]]}}'], ids=range(5)
)
def test_malformed_ends_stop_the_dispatch_with_the_position(stores, drain, body):
    store = stores.open()
    at = store.append(RecordDraft(META_TOPIC, 0, body, ENDS_PROPERTIES)).physical_offset
    drain(store)
    assert "not the body of a record with ends of queues" in str(store.write_refusal)
    assert f"{at}" in str(store.write_refusal)


@pytest.mark.parametrize("count", OLD)
@pytest.mark.parametrize("has_summary", [True, False], ids=["with summary", "without summary"])
def test_rebuild_keeps_the_ends_of_queues_without_records(stores, draft, drain, count, has_summary):
    """Of a store of RocketMQ, for example, which has no summary of its queues."""
    store = store_without_old_files(stores, draft, drain, "store", count)
    wanted = all_ends(store)
    store.close()
    if not has_summary:
        (store.root / "raymq.derived").unlink()
    rebuild(store.root)
    assert verify(store.root).findings == []
    again = stores.open()
    assert all_ends(again) == wanted
    assert again.append(draft(b"new")).queue_offset == count


def test_interrupted_removal_of_queues_keeps_the_same_queues(stores, draft, drain, monkeypatch: Any):
    leader = leader_of(stores, draft, drain, 40)
    for number in range(50):
        leader.append(draft(b"%d" % number, queue_id=1))
    drain(leader)
    log_min = leader.positions.min
    leader.close()
    directory = leader.root / "consumequeue"
    for step in range(40):
        root = shutil.copytree(directory, directory.with_name(f"copy-{step}"))
        work: Callable[[], None] = partial(removal.remove_derivable_queues, root, 400, log_min)
        if not killed_at(monkeypatch, Path, "unlink", step, work):
            break
        work()
        assert {str(path.relative_to(root)) for path in root.glob("*/*")} == {"Topic/0"}
    assert step > 3

"""A deletion in the log deletes the queues of a topic at the same place, however the log is dispatched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from store.disk.retired import RemoveTreeJob
from store.dispatch.queue_changes import META_TOPIC, deletion_properties
from store.message.hosts import Host
from store.message.message import MessageExt
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.store_errors import StoreError
from store.tools import rebuild as rebuild_module
from store.tools.rebuild import rebuild
from store.tools.reindex.run import reindex
from store.tools.verify import verify
from tests.store.stepped import StepByStep
from tests.store.tools.test_rebuild import killed_at


def delete(store: MessageStore, *topics: str, sender: Host | None = None) -> None:
    more = {} if sender is None else {"born_host": sender.packed}
    store.append(RecordDraft(META_TOPIC, 0, b"", deletion_properties(topics), **more))


def send(store: MessageStore, draft: Callable[..., RecordDraft], *bodies: bytes, queue_id: int = 0) -> None:
    for body in bodies:
        store.append(draft(body, queue_id=queue_id))


def offsets(messages: list[MessageExt]) -> list[tuple[int, bytes]]:
    return [(message.queue_offset, message.body) for message in messages]


def delete_after_a_checkpoint(store: MessageStore, draft: Callable[..., RecordDraft], drain, clock) -> None:
    send(store, draft, b"old 1", b"old 2", b"old 3")
    send(store, draft, b"old", queue_id=1)
    store.append(draft(b"other", topic="Other"))
    drain(store)
    clock.advance(store.settings.checkpoint_interval_ms)
    store.advance()  # begins a checkpoint that lists the old queues
    store.finish_background()
    delete(store, "Topic")


def delete_and_create_again(store: MessageStore, draft: Callable[..., RecordDraft], drain) -> None:
    """As a leader does: it appends nothing to the topic until its deletion is dispatched."""
    send(store, draft, b"old 1", b"old 2", b"old 3")
    send(store, draft, b"old", queue_id=1)
    store.append(draft(b"other", topic="Other"))
    delete(store, "Topic")
    drain(store)
    send(store, draft, b"new 1", b"new 2")
    drain(store)


def assert_begun_again(store: MessageStore, read_all) -> None:
    assert offsets(read_all(store)) == [(0, b"new 1"), (1, b"new 2")]
    assert set(store.queues()) == {("Topic", 0), ("Other", 0), (META_TOPIC, 0)}


def test_deleted_topic_has_no_queues_and_begins_at_0_again(stores, draft, drain, read_all):
    store = stores.open()
    delete_and_create_again(store, draft, drain)
    assert_begun_again(store, read_all)
    store.finish_background()
    assert not list(store.root.glob("removed-*"))
    assert not (store.root / "consumequeue" / "Topic" / "1").exists()


def test_replica_that_dispatches_all_of_it_at_once_has_the_same_queues(stores, draft, drain, read_all):
    leader, follower = stores.open("leader"), stores.open("follower")
    delete_and_create_again(leader, draft, drain)
    follower.append_raw(0, leader.log_bytes(0, leader.positions.written))
    drain(follower)
    assert_begun_again(follower, read_all)
    assert not (follower.root / "consumequeue" / "Topic" / "1").exists()


def test_deletion_after_many_queues_waits_for_their_units(stores, draft, drain):
    executor = StepByStep()  # a job of another thread would run after the deletion
    store = stores.open(executors=lambda _name, _threads: executor)
    for queue_id in range(40):  # enough for a bulk write by another thread
        send(store, draft, b"old", queue_id=queue_id)
    delete(store, "Topic")
    drain(store)
    assert set(store.queues()) == {(META_TOPIC, 0)}
    assert not (store.root / "consumequeue" / "Topic").exists()


def test_deletion_that_a_client_sent_is_ignored(stores, draft, drain, read_all):
    store = stores.open()
    send(store, draft, b"kept")
    delete(store, "Topic", sender=Host("10.0.0.1", 1234))
    drain(store)
    assert offsets(read_all(store)) == [(0, b"kept")]


@pytest.fixture(
    params=[
        "killed early",
        "killed after a checkpoint",
        "killed early, rebuilt",
        "closed, rebuilt",
        "no summary",
    ]
)
def reopened(request, stores, draft, drain, clock, monkeypatch) -> MessageStore:
    """Give a store that was stopped after a deletion, and opened again."""
    store = stores.open()
    delete_after_a_checkpoint(store, draft, drain, clock)
    monkeypatch.setattr(RemoveTreeJob, "run", lambda _: None)
    store.flush_now()
    store.dispatch_now()
    root = store.root
    if request.param.startswith("killed"):
        if "after" in request.param:
            store.advance()
            store.finish_background()
        root = stores.kill(store, "killed")
    else:
        store.close()
    monkeypatch.undo()
    if request.param == "no summary":
        (root / "raymq.derived").unlink()
    if "rebuilt" in request.param:
        rebuild(root)
    return stores.open(root.name)


def test_stop_after_a_deletion_does_not_bring_the_topic_back(reopened, draft, drain, read_all):
    assert set(reopened.queues()) == {("Other", 0), (META_TOPIC, 0)}
    send(reopened, draft, b"new 1", b"new 2")
    drain(reopened)
    assert_begun_again(reopened, read_all)
    reopened.close()
    assert verify(reopened.root).findings == []


@pytest.mark.extended
def test_resumed_rebuild_reserves_no_offsets_of_a_deleted_topic(stores, draft, drain, clock, monkeypatch):
    store = stores.open()
    delete_after_a_checkpoint(store, draft, drain, clock)
    for number in range(40):
        store.append(draft(b"%d" % number * 100, topic="Other"))
    store.flush_now()
    store.dispatch_now()
    killed = stores.kill(store, "killed")
    monkeypatch.setattr(rebuild_module, "_SLICE_BYTES", 1024)
    monkeypatch.setattr(rebuild_module, "_NOTE_EVERY_BYTES", 1)
    for step in range(40):
        root = shutil.copytree(killed, killed.with_name(f"copy-{step}"))
        if not killed_at(monkeypatch, rebuild_module, "replace_file", step, partial(rebuild, root)):
            break
        rebuild(root)
        again = stores.open(root.name)
        assert set(again.queues()) == {("Other", 0), (META_TOPIC, 0)}, step
        again.close()
    assert 5 < step < 39


def test_rebuild_and_verify_know_deletions_and_a_reindex_refuses_them(stores, draft, drain, read_all):
    store = stores.open()
    delete_and_create_again(store, draft, drain)
    store.close()
    assert verify(store.root).findings == []
    files = stores.files(store.root)
    rebuild(store.root)
    assert {name for name in stores.files(store.root) if "removed-" not in name} == set(files)
    assert verify(store.root).findings == []
    with pytest.raises(StoreError, match="use `raymq store rebuild`"):
        reindex(None, Path(store.root))
    assert_begun_again(stores.open(), read_all)

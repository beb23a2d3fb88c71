"""A replica removes the log that it cannot continue, wherever an earlier start was interrupted."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.raft import renewal
from actors.broker.replication.raft.group_tables import save_tables
from actors.broker.replication.raft.opening import RaftReplica, open_replica
from actors.broker.replication.raft.renewal import REBUILD_FILE, require_rebuild
from actors.raft.effects import Restart
from store.commitlog.positions import ConfirmPolicy
from store.common.clock import SystemClock
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity, StoreLock, read_name
from store.store_errors import StoreError
from tests.actors.broker.brokers import settings_of

remove = renewal.remove
FILE_BYTES = 4096
BODY = bytes(1000)


def opened(made: BrokerSettings) -> RaftReplica:
    def open_store(confirm: ConfirmPolicy) -> MessageStore:
        identity = StoreIdentity(made.cluster_name, made.broker_name, made.replica)
        return MessageStore.open(made.store_root, made.store, identity, SystemClock(), confirm=confirm)

    return open_replica(made, SystemClock(), random.Random(1), open_store)


@pytest.fixture
def made(tmp_path: Path) -> BrokerSettings:
    """The settings of replica 0, whose log has twelve confirmed records in four files."""

    def settings(store_id: str) -> BrokerSettings:
        more: dict[str, Any] = {"flush": "sync", "commit_log_file_bytes": FILE_BYTES, "lock_timeout_ms": 0}
        members = [f"{store_id}127.0.0.1:1", "b@127.0.0.1:2", "c@127.0.0.1:3"]
        return settings_of(tmp_path, more, replication="raft", raft_members=members)

    with pytest.raises(StoreError, match="was created"):
        opened(settings(""))
    name = read_name(tmp_path / "store")
    assert name is not None
    result = settings(f"{name.store_id}@")
    replica = opened(result)
    for _ in range(12):
        replica.store.append(RecordDraft("T", 0, BODY))
    replica.store.flush_now()
    replica.log.confirm(replica.log.end)
    replica.store.advance()
    replica.store.close()
    return result


def join_at(made: BrokerSettings, offset: int) -> None:
    """Save what a replica saves before its old log is removed."""
    replica = opened(made)
    saved = replica.term_file.read()
    assert saved is not None
    replica.term_file.write(saved._replace(join_offset=offset))
    replica.store.close()


def assert_joins(made: BrokerSettings, offset: int) -> None:
    replica = opened(made)
    assert replica.log.is_new
    assert Restart(offset) in replica.node.start()
    assert replica.store.get_message("T", 0, 0, 32, 1 << 20).max_offset == 0
    replica.log.begin_at(offset)
    assert (replica.log.min, replica.log.end, replica.log.flushed) == (offset, offset, offset)
    replica.store.close()


def test_old_log_is_removed_after_an_interruption_at_each_step(
    made: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = 16 * FILE_BYTES
    join_at(made, offset)
    root = made.store_root
    kept = shutil.copytree(root, root.with_name("kept"))
    removed: list[int] = []
    monkeypatch.setattr(renewal, "remove", lambda paths: removed.append(len(paths)))
    replica = opened(made)
    replica.store.close()
    for steps in range(removed[0] + 1):
        shutil.rmtree(root)
        shutil.copytree(kept, root)

        def interrupted(paths: list[Path], limit: int = steps) -> None:
            remove(paths[:limit])
            raise OSError(f"after {limit}")

        monkeypatch.setattr(renewal, "remove", interrupted)
        with pytest.raises(OSError, match=f"after {steps}"):
            opened(made)
        monkeypatch.setattr(renewal, "remove", remove)
        assert_joins(made, offset)
    assert_joins(made, offset)


def test_log_that_begins_at_the_join_offset_is_kept(made: BrokerSettings) -> None:
    join_at(made, 0)
    replica = opened(made)
    assert not replica.log.is_new
    replica.store.close()


def test_rebuild_derives_consume_queues_and_index_again(made: BrokerSettings) -> None:
    root = made.store_root
    require_rebuild(root)
    [unit_file] = (root / "consumequeue/T/0").iterdir()
    wrong = unit_file.read_bytes()
    unit_file.write_bytes(bytes(len(wrong)))
    replica = opened(made)
    replica.store.dispatch_now()
    assert replica.store.get_message("T", 0, 0, 32, 1 << 20).message_count == 12
    assert not (root / REBUILD_FILE).exists()
    replica.store.close()
    assert unit_file.read_bytes() == wrong


@pytest.mark.parametrize("has_full_set", [False, True])
def test_rebuild_keeps_ends_of_queues_unless_the_log_has_them(
    made: BrokerSettings, has_full_set: bool
) -> None:
    root = made.store_root
    replica = opened(made)
    replica.store.append(RecordDraft("U", 0, BODY))  # its file stays
    replica.store.flush_now()
    replica.log.confirm(replica.log.end)
    replica.store.advance()
    replica.store.close()
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    log_min = int(next((root / "commitlog").iterdir()).name)
    full_set_from = log_min if has_full_set else log_min - 1
    save_tables(root, json.dumps({"entries": [], "nextOffset": 0, "fullSetFrom": full_set_from}).encode())
    require_rebuild(root)
    replica = opened(made)
    replica.store.dispatch_now()
    ends = (0 if has_full_set else 12, 1)
    assert (replica.store.max_offset("T", 0), replica.store.max_offset("U", 0)) == ends
    replica.store.close()


def test_open_store_is_not_changed(made: BrokerSettings) -> None:
    join_at(made, 16 * FILE_BYTES)
    lock = StoreLock(made.store_root)
    lock.acquire(0)
    before = sorted(made.store_root.rglob("*"))
    with pytest.raises(StoreError, match="already open"):
        opened(made)
    assert sorted(made.store_root.rglob("*")) == before
    lock.release()

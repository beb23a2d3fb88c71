"""A replica starts only with the store, the term file and the members that it had."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.raft.opening import RaftReplica, open_replica
from actors.raft.bound_file import BOUND_FILE, read_bound
from actors.raft.effects import SavedTerm
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.term_file import TERM_FILE
from store.commitlog.positions import ConfirmPolicy
from store.common.clock import SystemClock
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity, read_name
from store.store_errors import StoreError
from tests.actors.broker.brokers import settings_of

OTHERS = ["b@127.0.0.1:2", "c@127.0.0.1:3"]


def settings(root: Path, *members: str, **more: Any) -> BrokerSettings:
    return settings_of(root, {"flush": "sync"}, replication="raft", raft_members=list(members), **more)


def opened(made: BrokerSettings) -> RaftReplica:
    def open_store(confirm: ConfirmPolicy) -> MessageStore:
        identity = StoreIdentity(made.cluster_name, made.broker_name, made.replica)
        return MessageStore.open(made.store_root, made.store, identity, SystemClock(), confirm=confirm)

    return open_replica(made, SystemClock(), random.Random(1), open_store)


def created(root: Path) -> str:
    """Create the store of replica 0, and return its id."""
    with pytest.raises(StoreError, match="was created: put its id"):
        opened(settings(root, "127.0.0.1:1", *OTHERS))
    name = read_name(root / "store")
    assert name is not None
    return name.store_id


def refusal(made: BrokerSettings) -> str:
    with pytest.raises(StoreError) as refused:
        opened(made)
    return str(refused.value)


def test_first_start_creates_the_store_and_the_second_one_joins_the_group(tmp_path: Path) -> None:
    store_id = created(tmp_path)
    replica = opened(settings(tmp_path, f"{store_id}@127.0.0.1:1", *OTHERS))
    assert replica.node.me == Member(0, store_id)
    assert [each.store_id for each in replica.node.members.voters] == [store_id, "b", "c"]
    assert replica.addresses[Member(0, store_id)] == "127.0.0.1:1"
    assert replica.addresses[Member(2, "c")] == "127.0.0.1:3"
    replica.store.close()


def test_lost_store_is_not_replaced_under_its_id(tmp_path: Path) -> None:
    assert "restore it" in refusal(settings(tmp_path, "a@127.0.0.1:1", *OTHERS))
    assert not (tmp_path / "store/raymq.json").exists()


def test_other_store_or_members_are_refused_by_name(tmp_path: Path) -> None:
    store_id = created(tmp_path)
    mine = f"{store_id}@127.0.0.1:1"
    assert f"this is store {store_id}, but raft_members has x" in refusal(
        settings(tmp_path, "x@127.0.0.1:1", *OTHERS)
    )
    assert f"this is store {store_id}, but raft_members has no store id" in refusal(
        settings(tmp_path, "127.0.0.1:1", *OTHERS)
    )
    assert "no store id of replica 1, 2" in refusal(settings(tmp_path, mine, "127.0.0.1:2", "127.0.0.1:3"))


def test_setting_that_differs_from_the_group_of_the_log_has_no_effect(tmp_path: Path) -> None:
    store_id = created(tmp_path)
    mine = f"{store_id}@127.0.0.1:1"
    opened(settings(tmp_path, mine, *OTHERS)).store.close()
    for members in ([mine, OTHERS[0], "d@127.0.0.1:4"], []):
        replica = opened(settings(tmp_path, *members))
        assert [each.store_id for each in replica.node.members.voters] == [store_id, "b", "c"]
        replica.store.close()
    assert "raft_members has d" in refusal(settings(tmp_path, "d@127.0.0.1:1", *OTHERS))
    replica = opened(settings(tmp_path))
    saved = replica.term_file.read()
    assert saved is not None
    group = Members((Member(0, store_id), Member(1, "b")))
    replica.term_file.write(saved._replace(history=(GroupRecord(0, 1, group),)))
    replica.store.close()
    opened(settings(tmp_path, "d@127.0.0.1:1", *OTHERS)).store.close()  # the log has this store


def test_replica_without_members_creates_its_store_and_waits(tmp_path: Path) -> None:
    for _ in range(2):
        replica = opened(settings(tmp_path, replica=3))
        name = read_name(tmp_path / "store")
        assert name is not None
        assert replica.node.me == Member(3, name.store_id)
        assert not replica.node.members.everyone
        replica.store.close()


@pytest.mark.parametrize("name", [TERM_FILE, BOUND_FILE])
def test_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    made = settings(tmp_path, f"{created(tmp_path)}@127.0.0.1:1", *OTHERS)
    opened(made).store.close()
    (tmp_path / "store" / name).write_bytes(b"garbage")
    assert "is damaged" in refusal(made)


def test_log_without_term_file_is_refused(tmp_path: Path) -> None:
    made = settings(tmp_path, f"{created(tmp_path)}@127.0.0.1:1", *OTHERS)
    identity = StoreIdentity(made.cluster_name, made.broker_name, 0)
    store = MessageStore.open(made.store_root, made.store, identity, SystemClock())
    store.append(RecordDraft("T", 0, b"of a single broker"))
    store.close()
    assert f"has a log but no {TERM_FILE}" in refusal(made)


def test_replica_that_lost_confirmed_records_knows_it_after_every_start(tmp_path: Path) -> None:
    made = settings(tmp_path, f"{created(tmp_path)}@127.0.0.1:1", *OTHERS)
    replica = opened(made)
    record = partial(RecordDraft, "T", 0)
    for body in (b"first", b"second"):
        replica.store.append(record(body))
    replica.store.flush_now()
    end = replica.log.end
    replica.log.confirm(end)
    replica.store.close()
    [log] = (tmp_path / "store/commitlog").iterdir()
    data = log.read_bytes()
    log.write_bytes(bytes(len(data)))  # the disk had not written what it said
    for _ in range(2):  # opening the store forgets how far it was confirmed
        replica = opened(made)
        assert replica.log.end < end
        assert not replica.node.is_electable
        replica.store.close()
    assert read_bound(tmp_path / "store") == end
    assert isinstance(replica.term_file.read(), SavedTerm)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"raft_members": OTHERS}, "2 replicas: a majority needs 3", id="two"),
        pytest.param({"replica": 3}, "has no replica 3", id="replica"),
        pytest.param({"raft_members": [*OTHERS, OTHERS[0]]}, "have one address", id="address"),
        pytest.param({"raft_members": ["a", *OTHERS]}, "a", id="no address"),
        pytest.param({"store": {"flush": "async"}}, "store.flush: sync", id="flush"),
        pytest.param({"role": "slave"}, "elects its master", id="role"),
        pytest.param({"group_epoch": 1}, "term of the group", id="epoch"),
        pytest.param({"adopt_store": True}, "another broker cannot be a member", id="adopt"),
        pytest.param({"replication": "sync"}, "only with replication: raft", id="other replication"),
    ],
)
def test_invalid_settings_are_refused(change: dict[str, Any], reason: str) -> None:
    members = ["a@127.0.0.1:1", *OTHERS]
    valid = {"replication": "raft", "raft_members": members, "store": {"flush": "sync"}}
    BrokerSettings.model_validate(valid)
    assert BrokerSettings.model_validate({**valid, "raft_members": ";".join(members)}).raft_members == members
    with pytest.raises(ValidationError, match=reason):
        BrokerSettings.model_validate({**valid, **change})


def test_first_members_derive_one_group_id_and_a_joining_replica_has_none(tmp_path: Path) -> None:
    """Replicas of an older version derive it, too: their term file has none."""
    store_id = created(tmp_path / "a")
    ids = []
    for members in ([f"{store_id}@127.0.0.1:1", *OTHERS], [], [f"{store_id}@127.0.0.1:9", *OTHERS]):
        replica = opened(settings(tmp_path / "a", *members))
        ids.append(replica.node.group_id)
        replica.store.close()
    assert len(set(ids)) == 1
    assert ids[0]
    joining = opened(settings(tmp_path / "b", replica=3))
    assert joining.node.group_id == ""
    joining.store.close()

"""What a migration makes of replicas in different states. Without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from cluster.control import fleet
from cluster.control.driver import Driver
from cluster.control.kinds import BROKER
from cluster.control.launch_errors import LaunchRefused
from cluster.control.launch_report import Reporter
from cluster.control.migration import MemberChanges, migrate_broker
from cluster.control.plan import Running
from cluster.control.raft_groups import RaftGroups, SavedRaftGroup
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source

pytestmark = pytest.mark.usefixtures("stored")
TOPOLOGY = Topology.model_validate({"brokers": [{"name": "a"}]})
GROUP = {"name": "a", "replication": "raft", "replicas": 3, "replicas_on_one_node": True}
RAFT = Topology.model_validate({"brokers": [GROUP]})


def preview(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    replication: str = "raft",
    **details: object,
) -> None:
    """Preview the migration of `a` to a single broker; one replica of its group, or the broker, is in Ray."""
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    settings = {"broker_name": "a", "replication": replication}
    spec = ActorSpec(BROKER, "a-0", "C", settings, ("h", 1), ("h", 1), "r", "/s")
    running = Running(TOPOLOGY.namespace, "a-0", spec, state, details=details)
    monkeypatch.setattr(fleet, "observe", lambda _: [running])
    monkeypatch.setattr(Driver, "connected", lambda _: nullcontext())
    monkeypatch.setattr(Driver, "plan", lambda *_: (None, [spec]))
    driver = Driver(TOPOLOGY, Source("t.yaml", {}, {}), Reporter(), dry_run=True, migrating="a")
    driver.raft = RaftGroups(driver.home, TOPOLOGY.namespace, lambda *_: None)
    if replication == "raft":
        driver.raft.save("a", SavedRaftGroup(("id@h:1",)))
    migrate_broker(driver, "a", cast(MemberChanges, None))


def test_replica_that_an_interrupted_migration_has_stopped_need_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview(tmp_path, monkeypatch, "stopped")


@pytest.mark.parametrize("state", ["serving", "not serving", "starting"])
def test_group_whose_first_replica_does_not_lead_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    with pytest.raises(LaunchRefused, match="a-0 does not lead"):
        preview(tmp_path, monkeypatch, state, raft_state="follower")
    preview(tmp_path, monkeypatch, state, raft_state="leader")


@pytest.mark.parametrize("state", ["stopped", "not serving"])
def test_broker_that_a_migration_keeps_from_serving_can_be_migrated_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The store is converted, but the group is not recorded, and Ray knows the former broker."""
    preview(tmp_path, monkeypatch, state, "none")


@pytest.mark.parametrize("state", ["serving", "starting"])
def test_single_broker_that_serves_is_not_migrated_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    with pytest.raises(LaunchRefused, match="a is a single broker already"):
        preview(tmp_path, monkeypatch, state, "none")


class NoChanges:
    """Changes no members."""

    def add(self, nameservers: str, broker: str, addresses: Sequence[str]) -> None:
        """Do nothing."""

    def remove_other_members(self, nameservers: str, broker: str, replica: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize("is_reported", [True, False])
def test_first_member_that_an_interrupted_migration_has_not_started_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reported: bool
) -> None:
    """It has converted and recorded the store; Ray may still have the actor, which is stopped."""
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    done: list[str] = []
    settings = {"broker_name": "a", "replication": "raft"}
    names = ["a-0", "a-1", "a-2"]
    specs = [ActorSpec(BROKER, each, "C", settings, ("h", 1), ("h", 1), "r", "/s") for each in names]
    states = ["stopped", "serving", "serving"][not is_reported :]
    found = [
        Running(RAFT.namespace, spec.name, spec, state)
        for spec, state in zip(specs[not is_reported :], states, strict=True)
    ]
    monkeypatch.setattr(fleet, "observe", lambda _: found)
    monkeypatch.setattr(fleet, "stop", lambda _, name: done.append(f"stop {name}"))
    monkeypatch.setattr(fleet, "create", lambda _, spec: done.append(f"create {spec.name}"))
    monkeypatch.setattr(Driver, "connected", lambda _: nullcontext())
    monkeypatch.setattr(Driver, "plan", lambda *_: (None, specs))
    monkeypatch.setattr(Driver, "await_serving", lambda *_: None)
    driver = Driver(RAFT, Source("t.yaml", {}, {}), Reporter(), migrating="a")
    driver.raft = RaftGroups(driver.home, RAFT.namespace, lambda *_: None)
    driver.raft.save("a", SavedRaftGroup(tuple(f"id{number}@h:1" for number in range(3))))
    migrate_broker(driver, "a", NoChanges())
    assert done == ["stop a-0", "create a-0"]

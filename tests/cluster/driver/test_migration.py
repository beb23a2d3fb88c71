"""What a migration back to a single broker makes of replicas in different states. Without Ray."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from cluster.driver import fleet
from cluster.driver.driver import Driver
from cluster.driver.kinds import BROKER
from cluster.driver.launch_errors import LaunchRefused
from cluster.driver.launch_report import Report
from cluster.driver.migration import MemberChanges, migrate_broker
from cluster.driver.plan import Running
from cluster.driver.raft_groups import GroupRecord, RaftGroups
from cluster.driver.specs import ActorSpec
from cluster.topology.topology import Topology
from cluster.topology.topology_file import Source

pytestmark = pytest.mark.usefixtures("stored")
TOPOLOGY = Topology.model_validate({"brokers": [{"name": "a"}]})


def preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, **details: object) -> None:
    """Preview the migration of group `a`, of which one replica is known to Ray."""
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    settings = {"broker_name": "a", "replication": "raft"}
    spec = ActorSpec(BROKER, "a-0", "C", settings, ("h", 1), ("h", 1), "r", "/s")
    running = Running(TOPOLOGY.namespace, "a-0", spec, state, details=details)
    monkeypatch.setattr(fleet, "observe", lambda _: [running])
    monkeypatch.setattr(Driver, "connected", lambda _: nullcontext())
    monkeypatch.setattr(Driver, "plan", lambda *_: (None, [spec]))
    driver = Driver(TOPOLOGY, Source("t.yaml", {}, {}), Report(), dry_run=True, migrating="a")
    driver.raft = RaftGroups(driver.home, TOPOLOGY.namespace, lambda *_: None)
    driver.raft.save("a", GroupRecord(("id@h:1",)))
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

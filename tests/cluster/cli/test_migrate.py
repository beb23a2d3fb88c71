"""`raymq migrate`: what it refuses before it connects to Ray, and how it changes the members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.testing import CliRunner

from actors.wire.bodies.raft_members import DONE, RaftChange, RaftMember, RaftMembers
from cluster.cli.main import build
from cluster.client import Admin
from cluster.client.errors import ConfigInvalid
from cluster.views.raft_migration import MemberSteps
from cluster.waiting import Waiting
from tests.cluster.cli.test_replica_members import GROUP, MEMBERS, FakeAdmin
from tests.faults.scenarios import TickingClock

NO_LEADER = ConfigInvalid("group broker-a has no leader now")


def raymq(tmp_path: Path, broker: str, *options: str, **keys: Any) -> tuple[int, str]:
    entry = {"name": "broker-a", "listen_port": 0, "replicas_on_one_node": True, **keys}
    topology = {"brokers": [entry], "nameservers": [{"listen_port": 0}], "ray": {"address": "new"}}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(topology))
    words = ["migrate", broker, "--topology", str(tmp_path / "t.yaml"), *options]
    done = CliRunner().invoke(build(words), words)
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("broker", "keys", "reason"),
    [
        pytest.param("broker-b", {}, "no broker 'broker-b' in the topology", id="unknown"),
        pytest.param("broker-a-1", {}, "names are without a replica's number", id="replica"),
        pytest.param(
            "broker-a", {"replicas": 2, "replication": "sync"}, "migrate to a single broker first", id="pair"
        ),
        pytest.param("broker-a", {"replicas": 2, "replication": "raft"}, "raft needs replicas: 3", id="two"),
        pytest.param("broker-a", {"replicas": 3, "replication": "raft"}, "is not running", id="stopped"),
    ],
)
def test_migration_that_is_not_possible_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str, keys: dict[str, Any], reason: str
) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, errors = raymq(tmp_path, broker, **keys)
    assert code == 2
    assert reason in errors


class Members(FakeAdmin):
    """A group whose leader is registered late."""

    def __init__(self, voters: int, failures: int = 0, leader: int = 0) -> None:
        super().__init__([RaftChange(DONE, "done") for _ in MEMBERS])
        self.members = [
            RaftMember(n, f"s{n}", f"h{n}:1", is_voter=True, is_leader=n == leader) for n in range(voters)
        ]
        self.failures = failures
        self.changed: list[tuple[str, int]] = []

    def raft_members(self, broker: str) -> RaftMembers:
        if self.failures:
            self.failures -= 1
            raise NO_LEADER
        return RaftMembers(GROUP, 7, 100, self.members)

    def broker_at(self, address: str) -> dict[str, Any]:
        number = int(address[1])
        return {**self.new, "replica": number, "store_id": f"s{number}", "address": address}

    def change_raft_members(self, broker: str, add: Any, remove: Any) -> RaftChange:
        self.changed.append(("add", add.replica) if add.store_id else ("remove", remove.replica))
        return super().change_raft_members(broker, add, remove)


def steps(admin: Members) -> tuple[MemberSteps, list[str]]:
    lines: list[str] = []

    @contextmanager
    def opened(nameservers: str) -> Iterator[Admin]:
        assert nameservers == "ns:1"
        yield cast(Admin, admin)

    clock = TickingClock()
    return MemberSteps(opened, lines.append, Waiting(clock, lambda _: clock.leap(10_000))), lines


def test_replicas_that_are_no_voters_yet_are_added() -> None:
    admin = Members(voters=2, failures=5)
    made, lines = steps(admin)
    made.add("ns:1", "broker-a", ["h0:1", "h1:1", "h2:1"])
    assert admin.changed == [("add", 2)]
    assert lines == ["adding h2:1 to broker-a", "done"]


def test_all_members_but_the_leader_are_removed() -> None:
    admin = Members(voters=3)
    made, _ = steps(admin)
    made.remove_other_members("ns:1", "broker-a", 0)
    assert admin.changed == [("remove", 1), ("remove", 2)]


def test_replica_that_does_not_lead_is_not_kept() -> None:
    admin = Members(voters=3, leader=1)
    made, _ = steps(admin)
    with pytest.raises(ConfigInvalid, match="`raymq transfer broker-a --to 0` first"):
        made.remove_other_members("ns:1", "broker-a", 0)
    assert admin.changed == []


def test_group_without_a_leader_is_waited_for_a_minute() -> None:
    made, _ = steps(Members(voters=3, failures=8))
    with pytest.raises(ConfigInvalid, match="no leader now"):
        made.add("ns:1", "broker-a", [])

"""`raymq replica add`, `remove` and `replace`: what they check, and how they change a real group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from actors.wire.bodies.raft_members import CHANGED, DONE, WAITING, RaftChange, RaftMember, RaftMembers
from actors.wire.codes import ResponseCode
from cluster.cli.main import build
from cluster.client import Admin
from cluster.client.errors import BrokerRefused, ClientError, ConfigInvalid
from cluster.views.raft_change import MemberChange, plan_change, run_change
from cluster.waiting import Waiting
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.faults.scenarios import TickingClock

GROUP = "DefaultCluster/broker-a"
MEMBERS = [RaftMember(n, f"s{n}", f"h{n}:1", is_voter=True, is_leader=n == 0) for n in range(3)]
NEW = {"cluster": "DefaultCluster", "broker": "broker-a", "raft_state": "follower"}


class FakeAdmin:
    """Answers with a group of three, one new broker, and the given steps of a change."""

    def __init__(self, steps: Sequence[RaftChange | ClientError] = (), **new: Any) -> None:
        self.members = [*MEMBERS]
        self.new = {**NEW, "replica": 3, "store_id": "s3", "address": "h3:1", **new}
        self.steps = list(steps)

    def raft_members(self, broker: str) -> RaftMembers:
        return RaftMembers(GROUP, 7, 100, self.members)

    def broker_at(self, address: str) -> dict[str, Any]:
        return {key: value for key, value in self.new.items() if value is not None}

    def change_raft_members(self, broker: str, add: RaftMember, remove: RaftMember) -> RaftChange:
        step = self.steps.pop(0)
        if isinstance(step, ClientError):
            raise step
        return step


def planned(admin: FakeAdmin, **change: Any) -> MemberChange:
    return plan_change(cast(Admin, admin), "broker-a", **change)


@pytest.mark.parametrize(
    ("new", "change", "reason"),
    [
        pytest.param({}, {"replica": 7}, "no replica 7: its replicas are 0, 1, 2", id="number"),
        pytest.param({}, {"replica": 0}, "replica 0 leads group broker-a: transfer", id="leader"),
        pytest.param(
            {"broker": "broker-b"}, {"address": "h:1"}, "belongs to DefaultCluster/broker-b", id="name"
        ),
        pytest.param({"raft_state": None}, {"address": "h:1"}, "no replication: raft", id="not raft"),
        pytest.param({"replica": 1}, {"address": "h:1"}, "`raymq replica replace broker-a 1", id="taken"),
        pytest.param(
            {"replica": 1}, {"address": "h:1", "replica": 2}, "`raymq replica replace broker-a 1", id="other"
        ),
        pytest.param({"replica": 1, "store_id": "s1"}, {"address": "h:1"}, "is a member of", id="member"),
    ],
)
def test_change_that_cannot_be_made_is_refused_first(
    new: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigInvalid, match=reason):
        planned(FakeAdmin(**new), **change)


@pytest.mark.parametrize(
    ("change", "voters", "warning"),
    [
        ({"replica": 1}, 2, "with 2 voters the group stops if one of them is lost"),
        ({"address": "h:1"}, 4, "4 voters survive the loss of no more replicas than 3"),
        ({"replica": 1, "address": "h:1"}, 3, ""),
    ],
    ids=["remove", "add", "replace"],
)
def test_preview_says_what_the_group_survives(change: dict[str, Any], voters: int, warning: str) -> None:
    plan = planned(FakeAdmin(), **change)
    assert (plan.voters_after, plan.warning) == (voters, warning)


def test_only_a_removed_broker_whose_place_is_not_taken_is_to_be_stopped() -> None:
    assert planned(FakeAdmin(), replica=1).leaves_a_broker
    assert planned(FakeAdmin(), replica=1, address="h:1").leaves_a_broker
    assert not planned(FakeAdmin(), address="h:1").leaves_a_broker
    same = FakeAdmin(replica=1, store_id="new", address="h1:1")
    assert not planned(same, replica=1, address="h1:1").leaves_a_broker


def test_interrupted_replacement_of_a_lost_disk_is_continued() -> None:
    """The old store of the same number is removed already: the new one must not be removed."""
    admin = FakeAdmin(replica=1, store_id="new")
    assert planned(admin, replica=1, address="h:1").remove.store_id == "s1"
    admin.members[1] = RaftMember(1, "new", "h:1", is_voter=False)
    plan = planned(admin, replica=1, address="h:1")
    assert (plan.add.store_id, plan.remove.store_id) == ("new", "")


def test_steps_are_reported_once_and_a_new_leader_is_awaited() -> None:
    unavailable = BrokerRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "does not lead")
    steps = [
        RaftChange(CHANGED, "gets the log"), RaftChange(WAITING, "1 of 9"), RaftChange(WAITING, "1 of 9"),
        unavailable, ConfigInvalid("no leader"), RaftChange(CHANGED, "is a voter"), RaftChange(DONE),
    ]  # fmt: skip
    said: list[str] = []
    slept: list[float] = []
    admin, clock = FakeAdmin(steps), TickingClock()
    plan = planned(admin, address="h:1")
    run_change(cast(Admin, admin), plan, said.append, Waiting(clock, slept.append))
    assert said == ["gets the log", "1 of 9", "is a voter"]
    assert len(slept) == 4

    admin.steps = [BrokerRefused(ResponseCode.SYSTEM_ERROR, "only 1 of the 2 voters")]
    with pytest.raises(BrokerRefused, match="only 1 of the 2 voters"):
        run_change(cast(Admin, admin), plan, said.append, Waiting(clock, slept.append))
    admin.steps = [unavailable, unavailable]
    with pytest.raises(BrokerRefused, match="does not lead"):
        run_change(cast(Admin, admin), plan, said.append, Waiting(clock, lambda _: clock.leap(61_000)))


async def raymq(group: Group, *words: str) -> tuple[int, str, str]:
    """Run a command in a thread, so that the brokers of this loop can respond to it."""
    named = ["replica", *words, "--nameserver", group.nameserver]
    done = await asyncio.to_thread(CliRunner().invoke, build(named), named)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.extended
def test_replica_of_a_real_group_is_replaced_by_a_command(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"kept")
            gone = (leader + 1) % 3
            new = await group.start_new(3)
            address = group.peers[3].broker.address
            code, out, errors = await raymq(group, "replace", "broker-a", str(gone), address, "--dry-run")
            assert (code, errors, json.loads(out)["votersAfter"]) == (0, "", 3)
            code, out, errors = await raymq(group, "replace", "broker-a", str(gone), address, "--yes")
            assert (code, errors) == (0, ""), errors
            assert json.loads(out)["add"]["storeId"] == new.store_id
            await group.stop(gone)
            assert await group.send(b"more", group.peers) != gone
            code, _, errors = await raymq(group, "remove", "broker-a", str(gone), "--yes")
            assert code == 2
            assert f"has no replica {gone}" in errors

    run(story)

"""Members of a running group are added, removed and replaced; the others reach them where they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.raft.members import Member
from actors.wire.admin_headers import ChangeRaftMembersHeader
from actors.wire.bodies.raft_members import DONE, WAITING, RaftChange, RaftMembers
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies, log_of
from tests.eventually import eventually_async

CHANGE = RayMQRequestCode.CHANGE_RAFT_MEMBERS


def added(group: Group, member: Member) -> dict[str, Any]:
    address = group.peers[member.replica].broker.address
    return {"add_replica": member.replica, "add_store_id": member.store_id, "add_address": address}


def removed(member: Member) -> dict[str, Any]:
    return {"remove_replica": member.replica, "remove_store_id": member.store_id}


async def asked(group: Group, **change: Any) -> RemotingCommand:
    """Send a change to a leader that accepts it, or refuses it for a reason that does not pass."""
    ext = ChangeRaftMembersHeader(**change).to_ext()

    async def ask(peer: Peer) -> RemotingCommand:
        response = await peer.ask(CHANGE, ext)
        if "transfer the leadership first" in (response.remark or ""):
            response.code = ResponseCode.NO_PERMISSION
        return response

    return (await group.of_leader(ask, group.peers))[1]


async def changed(group: Group, **change: Any) -> list[str]:
    """Repeat a change until it is done, and return the steps."""
    steps: list[str] = []

    async def is_done() -> bool:
        answer = RaftChange.decode((await asked(group, **change)).body)
        if answer.state != WAITING and answer.text not in steps:
            steps.append(answer.text)
        return answer.state == DONE

    await eventually_async(is_done)
    return steps


async def members_at(group: Group, replica: int) -> RaftMembers:
    response = await group.peers[replica].ask(RayMQRequestCode.GET_RAFT_MEMBERS)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return RaftMembers.decode(response.body)


async def voters_at(group: Group, replica: int) -> set[Member]:
    found = await members_at(group, replica)
    return {Member(each.replica, each.store_id) for each in found.members if each.is_voter}


def test_replica_elsewhere_replaces_one_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """The old replica is stopped for good, then a second one: the new one is needed for a majority."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            gone, other = [each for each in range(3) if each != leader]
            await group.stop(gone)
            new = await group.start_new(3)
            steps = await changed(group, **added(group, new), **removed(group.members[gone]))
            assert steps == [
                f"{new} gets the log",
                f"{new} is a voter",
                f"{group.members[gone]} is removed",
                "",
            ]
            assert await changed(group, **added(group, new), **removed(group.members[gone])) == [""]
            remaining = {group.members[leader], group.members[other], new}
            for each in (leader, other, 3):
                await eventually_async(partial(has_voters, group, each, remaining))
            leader = await group.send(b"second", [leader, other])
            other = next(each for each in group.peers if each not in (leader, 3))
            await group.stop(leader)
            last = await group.send(b"third", [other, 3])
            assert list(dict.fromkeys(await bodies(group, last))) == [b"first", b"second", b"third"]
            both = (other, 3)
            await eventually_async(lambda: log_of(group, both[0]) == log_of(group, both[1]))
            for each in both:  # the setting names a member that is gone
                await group.stop(each)
            for each in both:
                await group.start(each)
            last = await group.send(b"fourth", both)
            assert (await bodies(group, last))[-1] == b"fourth"

    run(story)


async def has_voters(group: Group, replica: int, voters: set[Member]) -> bool:
    return await voters_at(group, replica) == voters


def test_unsafe_and_invalid_changes_are_refused_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            await refuses(group, tmp_path)
            found = await members_at(group, leader)
            assert [each.replica for each in found.members] == [0, 1, 2]
            assert all(":" in each.address for each in found.members)

    run(story)


async def refuses(group: Group, tmp_path: Path) -> None:
    stores = [each.store_id for each in group.members]
    for change, code, reason in (
        ((1, "x", "10.0.0.9:1"), ResponseCode.INVALID_PARAMETER, "cannot be added beside replica 1"),
        ((7, stores[1], "10.0.0.9:1"), ResponseCode.INVALID_PARAMETER, "cannot be added beside replica 1"),
        ((-1, "x", "10.0.0.9:1"), ResponseCode.INVALID_PARAMETER, "addReplica is -1"),
        ((7, "x", "nowhere"), ResponseCode.INVALID_PARAMETER, "addAddress: 'nowhere'"),
    ):
        replica, store_id, address = change
        refused = await asked(group, add_replica=replica, add_store_id=store_id, add_address=address)
        assert (refused.code, reason in (refused.remark or "")) == (code, True), refused.remark
    both = {**removed(group.members[1]), "add_replica": 1, "add_store_id": stores[1], "add_address": "h:1"}
    refused = await asked(group, **both)
    assert "is to be added and removed" in (refused.remark or "")
    leader = next(each for each in range(3) if group.figure(each, "raft_state") == "leader")
    refused = await group.peers[leader].ask(
        CHANGE, ChangeRaftMembersHeader(**removed(group.members[leader])).to_ext()
    )
    assert "transfer the leadership first" in (refused.remark or "")
    follower = (leader + 1) % 3
    refused = await group.peers[follower].ask(
        CHANGE, ChangeRaftMembersHeader(**removed(group.members[0])).to_ext()
    )
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "does not lead its group: send the change to its leader" in (refused.remark or "")


@pytest.mark.extended
def test_replica_that_was_down_accepts_a_leader_that_it_does_not_know(tmp_path: Path) -> None:
    """Two of three were replaced while the third was down: a member that it knows must name the leader."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            down, other = [each for each in range(3) if each != leader]
            await eventually_async(lambda: log_of(group, down) == log_of(group, leader))
            await group.stop(down)
            new = await group.start_new(3)
            await changed(group, **added(group, new))
            await changed(group, **removed(group.members[other]))
            await group.stop(other)
            while await group.send(b"second", [leader, 3]) != 3:
                await group.stop(leader)
                await group.start(leader)
            voters = {group.members[leader], group.members[down], new}
            await group.start(down)
            await eventually_async(lambda: has_voters(group, down, voters))
            await eventually_async(lambda: log_of(group, down) == log_of(group, 3))
            await group.stop(3)
            last = await group.send(b"third", [leader, down])
            assert list(dict.fromkeys(await bodies(group, last))) == [b"first", b"second", b"third"]

    run(story)

"""A member that a replica does not know yet is served; one that was removed disturbs no leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.replication.raft.raft_requests import raft_message
from actors.raft.members import Member
from actors.raft.messages import LeaderNotice, VoteRequest
from actors.wire.codes import ResponseCode
from actors.wire.header import I64_MAX
from tests.actors.broker.brokers import TIMEOUT_MS, run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies, log_of
from tests.actors.broker.replication.raft.test_member_change import added, changed, has_voters, removed
from tests.eventually import eventually_async

GROUP = "DefaultCluster/broker-a"


@pytest.mark.slow
def test_replica_that_was_down_elects_a_member_that_it_does_not_know(tmp_path: Path) -> None:
    """Two of the three voters are up: the one that was down, and the one that was added meanwhile."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            down, replaced = [each for each in range(3) if each != leader]
            await eventually_async(lambda: log_of(group, down) == log_of(group, leader))
            await group.stop(down)
            new = await group.start_new(3)
            await changed(group, **added(group, new), **removed(group.members[replaced]))
            await eventually_async(lambda: log_of(group, leader) == log_of(group, 3))
            await group.stop(replaced)
            await group.stop(leader)
            await group.start(down)
            last = await group.send(b"second", [down, 3])
            assert list(dict.fromkeys(await bodies(group, last))) == [b"first", b"second"]
            voters = {group.members[leader], group.members[down], new}
            await eventually_async(lambda: has_voters(group, down, voters))

    run(story)


def test_strangers_and_impossible_terms_do_not_depose_a_leader(tmp_path: Path) -> None:
    """A removed member, one of a group with the same names, and a term that no group reaches."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            term = group.figure(leader, "raft_term")
            follower = next(each for each in range(3) if each != leader)
            group_id = group.figure(leader, "raft_group_id")
            stranger = Member(7, "removed")
            for sender, ahead, named in (
                (stranger, 9, group_id), (stranger, 9, "another group"), (stranger, 9, ""),
                (group.members[follower], I64_MAX - term, group_id),
            ):  # fmt: skip
                for message in (
                    VoteRequest(sender, term + ahead, True, term + ahead, 1 << 40),
                    VoteRequest(sender, term + ahead, False, term + ahead, 1 << 40),
                    LeaderNotice(sender, term + ahead),
                ):
                    for to in {leader, 3 - leader - follower}:
                        command = raft_message(GROUP, group.members[to], message, "", named)
                        peer = group.peers[to]
                        response = await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)
                        is_ignored = sender == stranger and named == group_id
                        assert (response.code == ResponseCode.SUCCESS) is is_ignored, response.remark
            await group.send(b"second", [leader])
            assert [group.figure(each, "raft_term") for each in range(3)] == [term] * 3

    run(story)

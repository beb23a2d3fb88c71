"""The leadership is transferred on request and before a stop; the former leader forwards requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicQueueHeader
from cluster.client import aio
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies
from tests.eventually import eventually_async

TRANSFER = RayMQRequestCode.TRANSFER_LEADERSHIP


async def transfer(group: Group, leader: int, to: int) -> RemotingCommand:
    return await group.peers[leader].ask(TRANSFER, {"toReplica": str(to)})


async def refuses_bad_targets(group: Group, leader: int) -> None:
    unknown = await transfer(group, leader, 7)
    assert unknown.code == ResponseCode.INVALID_PARAMETER
    assert "replica 7 is no voter of the group: these are 0, 1, 2" in (unknown.remark or "")
    malformed = await group.peers[leader].ask(TRANSFER, {"toReplica": "x"})
    assert malformed.code == ResponseCode.SYSTEM_ERROR
    follower = (leader + 1) % 3
    asked = await transfer(group, follower, follower)
    assert asked.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "this replica is not the leader; the leader is" in (asked.remark or "")


def test_no_send_to_a_former_leader_fails_after_a_transfer(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            await eventually_async(group.is_leader_registered)
            await refuses_bad_targets(group, leader)
            to, sent = (leader + 1) % 3, [b"first"]
            stopping = False

            async def produce() -> None:
                while not stopping:
                    body = b"%d" % len(sent)
                    response = await group.peers[leader].send("T", body)
                    assert response.code == ResponseCode.SUCCESS, response.remark
                    sent.append(body)

            producer = asyncio.ensure_future(produce())
            await eventually_async(lambda: len(sent) > 20)
            moved = await transfer(group, leader, to)
            assert moved.code == ResponseCode.SUCCESS, moved.remark
            assert group.figure(to, "raft_state") == "leader"
            count = len(sent)
            await eventually_async(lambda: len(sent) > count + 20)
            stopping = True
            await producer
            assert await bodies(group, to) == sent
            await eventually_async(group.is_leader_registered)
            offset = await group.peers[leader].ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "3"},
            )
            assert offset.code == ResponseCode.SUCCESS, offset.remark
            assert (await group.peers[to].committed("CG", "T")).ext["offset"] == "3"
            end = await group.peers[leader].ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", 0).to_ext())
            assert int(end.ext["offset"]) == len(sent)
            async with aio.Admin(group.nameserver) as admin:
                now = await admin.transfer_leadership("broker-a", leader, dry_run=True)
                assert await admin.transfer_leadership("broker-a", to) == now  # it leads already
                back = await admin.transfer_leadership("broker-a", leader)
            assert group.figure(leader, "raft_state") == "leader"
            assert (await group.peers[leader].send("T", b"back")).code == ResponseCode.SUCCESS
            assert back != now

    run(story)


def test_stop_of_the_leader_hands_over_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            term = group.figure(leader, "raft_term")
            await group.stop(leader)
            others = [each for each in range(3) if each != leader]
            await eventually_async(group.is_leader_registered)
            assert {group.figure(each, "raft_term") for each in others} == {term + 1}
            assert [group.figure(each, "raft_state") for each in others].count("leader") == 1

    run(story)


@pytest.mark.extended
def test_requests_are_handled_by_the_old_leader_if_the_transfer_fails(tmp_path: Path) -> None:
    """The links of the new leader are cut at the moment of the transfer."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"first")
            await eventually_async(group.is_leader_registered)
            to = (leader + 1) % 3
            group.isolate(to)
            moving = asyncio.ensure_future(transfer(group, leader, to))
            response = await group.peers[leader].send("T", b"second")
            assert response.code == ResponseCode.SUCCESS, response.remark
            failed = await moving
            assert failed.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert group.figure(leader, "raft_state") == "leader"
            assert await bodies(group, leader) == [b"first", b"second"]

    run(story)

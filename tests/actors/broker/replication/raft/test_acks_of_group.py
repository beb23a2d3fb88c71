"""Acks of popped messages that were acknowledged survive the loss, and a transfer, of the leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from actors.wire.admin_headers import ResetOffsetHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.features.pop.pops import GROUP, Popped, ack, bodies, pop_response, popped, send
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_transfers import transfer
from tests.eventually import eventually_async


async def pop_until(group: Group, body: bytes, among: Iterable[int] = range(3)) -> list[Popped]:
    """Pop at the leader until this message is found; return everything that was popped."""
    found: list[Popped] = []

    async def is_found() -> bool:
        _, response = await group.of_leader(pop_response, among)
        found.extend(popped(response) if response.code == ResponseCode.SUCCESS else [])
        return body in bodies(found)

    await eventually_async(is_found)
    return found


async def acked(group: Group, each: Popped, among: Iterable[int] = range(3)) -> int:
    replica, response = await group.of_leader(partial(ack, each=each), among)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return replica


async def with_claims(group: Group) -> tuple[int, list[Popped]]:
    """Send and pop six messages, and ack two in the middle; return the leader and what was popped."""
    await group.send(b"0")
    leader, _ = await group.of_leader(partial(Peer.send, topic="T", body=b"1"))
    await send(group.peers[leader], "2", "3", "4", "5")
    claimed = await pop_until(group, b"5")
    assert bodies(claimed) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    for each in (claimed[1], claimed[3]):
        assert await acked(group, each) == leader
    return leader, claimed


async def reset(peer: Peer, offset: int) -> RemotingCommand:
    header = ResetOffsetHeader(topic="T", group=GROUP, queue_id=0, offset=offset, timestamp=-1, is_force=True)
    return await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())


def test_acknowledged_acks_survive_the_loss_of_the_leader(tmp_path: Path) -> None:
    """Two acks are those of the lost leader, one is of its message at the next leader, twice one after."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader, claimed = await with_claims(group)
            group.isolate(leader)
            others = [each for each in range(3) if each != leader]
            await acked(group, claimed[2], others)  # before it is popped again
            again = await pop_until(group, b"5", others)
            assert bodies(again) == [b"0", b"4", b"5"]
            await acked(group, claimed[4], others)  # after it was popped again
            second = await acked(group, again[2], others)
            await group.stop(leader)
            await group.start(leader)
            group.heal()
            await eventually_async(lambda: group.figure(leader, "written") == group.figure(second, "written"))
            assert (await transfer(group, second, leader)).code == ResponseCode.SUCCESS
            assert bodies(await pop_until(group, b"0", [leader])) == [b"0"]

    run(story)


def test_transfer_of_the_leadership_loses_no_ack(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"creates the topic")
            await eventually_async(group.is_leader_registered)
            peer, to = group.peers[leader], (leader + 1) % 3
            await send(peer, *(f"{number:03}" for number in range(100)))
            claimed = [each for _ in range(4) for each in popped(await pop_response(peer))]
            assert len(claimed) == 101
            to_ack = claimed[1:-1][::-1]  # the oldest one stays open, so that all depend on it
            acks = [asyncio.ensure_future(ack(peer, each)) for each in to_ack[:50]]
            moving = asyncio.ensure_future(transfer(group, leader, to))
            acks += [asyncio.ensure_future(ack(peer, each)) for each in to_ack[50:]]
            responses = await asyncio.gather(*acks)
            assert (await moving).code == ResponseCode.SUCCESS
            assert {each.code for each in responses} == {ResponseCode.SUCCESS}
            assert group.figure(to, "raft_state") == "leader"
            again = await pop_until(group, b"099", [to])
            assert bodies(again) == [b"creates the topic", b"099"]

    run(story)


def test_reset_of_offsets_forgets_the_acks_at_all_replicas(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader, _ = await with_claims(group)
            offsets = group.peers[leader].tables.offsets
            assert offsets.acked.entries() == {"T@PopG@0@0": "a"}
            _, response = await group.of_leader(partial(reset, offset=0))
            assert response.code == ResponseCode.SUCCESS, response.remark
            to = (leader + 1) % 3
            assert (await transfer(group, leader, to)).code == ResponseCode.SUCCESS
            assert len(await pop_until(group, b"5", [to])) == 6

    run(story)

"""A leader moves no offset before a record of its term is confirmed.

The former leader may have confirmed more than it knows.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from actors.broker.replication.raft.build import RaftBroker
from actors.raft.members import Member
from actors.raft.messages import Message, Records
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import TopicQueueHeader
from tests.actors.broker.brokers import A_DAY_MS, HOLD_MS, Peer, run
from tests.actors.broker.features.transactions.transactions import copy_store
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import eventually_async

COUNT = 20
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE


async def fill(group: Group) -> int:
    """Send COUNT messages, wait until all replicas have them on disk, and return the leader."""
    leader = -1
    for number in range(COUNT):
        leader = await group.send(b"%d" % number)
    written = group.figure(leader, "written")
    for replica in group.peers:
        await eventually_async(lambda at=replica: group.figure(at, "flushed") >= written)  # type: ignore[misc]
    return leader


async def kill_all(group: Group) -> None:
    """Stop all replicas, and leave their stores as a kill of all at once would."""
    killed = {replica: group.root(replica).parent / "killed" for replica in group.peers}
    for replica, root in killed.items():
        copy_store(group.root(replica), root)
    await asyncio.gather(*map(group.stop, killed))
    for replica, root in killed.items():
        shutil.rmtree(group.root(replica))
        shutil.move(root / "store", group.root(replica))


async def assert_not_moved(peer: Peer) -> None:
    for offset in (COUNT, COUNT + 1):
        for pulled in (await peer.pull("T", offset), await peer.pull_records("T", offset)):
            assert pulled.code != ResponseCode.PULL_OFFSET_MOVED, pulled
            assert int(pulled.ext.get("nextBeginOffset", offset)) == offset


async def assert_goes_on(group: Group, among: tuple[int, ...]) -> None:
    """Pull at COUNT from the next leader, which gets the next message."""
    leader = await group.send(b"next", among)
    pulled = await group.peers[leader].pull("T", COUNT, wait_ms=HOLD_MS)
    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (0, str(COUNT + 1))
    assert await group.peers[leader].offset(RequestCode.GET_MAX_OFFSET, "T") == COUNT + 1
    assert group.figure(leader, "hidden_bytes") == 0


def test_killed_group_moves_no_offset_before_it_has_a_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path, checkpoint_interval_ms=A_DAY_MS) as group:
            await fill(group)
            await kill_all(group)
            await group.start(0)
            await assert_not_moved(group.peers[0])
            ext = TopicQueueHeader("T", 0).to_ext()
            response = await group.peers[0].ask(RequestCode.GET_MAX_OFFSET, ext)
            assert response.code == REFUSED
            assert "start a majority of the group" in (response.remark or "")
            await group.start(1)
            await assert_goes_on(group, (0, 1))

    run(story)


def test_leader_moves_no_offset_before_its_first_record_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The followers have all messages, but do not know that the leader has confirmed them."""
    send, is_cut = RaftBroker.send, asyncio.Event()

    def send_unconfirmed(broker: RaftBroker, to: Member, message: Message) -> None:
        if isinstance(message, Records):
            if is_cut.is_set():
                return
            message = message._replace(confirmed=0)
        send(broker, to, message)

    monkeypatch.setattr(RaftBroker, "send", send_unconfirmed)

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await fill(group)
            assert len(await group.peers[leader].messages("T")) == COUNT
            is_cut.set()
            await group.stop(leader)
            others = tuple(group.peers)

            async def is_elected() -> bool:
                for replica in others:
                    await assert_not_moved(group.peers[replica])
                states = {
                    group.figure(each, "raft_state"): group.figure(each, "hidden_bytes") for each in others
                }
                return states.get("leader", 0) > 0

            await eventually_async(is_elected)
            monkeypatch.undo()
            await assert_goes_on(group, others)

    run(story)

"""A replica that lacks the records of a queue, because they are deleted, continues the queue at its end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from actors.broker.replication.raft.renewal import require_rebuild
from actors.wire.codes import RequestCode, ResponseCode
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_deleted_topics import until_equal
from tests.actors.broker.replication.raft.test_joining import FILE_BYTES, SMALL, delete_files
from tests.actors.broker.replication.raft.test_tables_of_group import commit
from tests.actors.broker.replication.raft.test_transfers import transfer
from tests.eventually import eventually_async


async def send(group: Group, topic: str, body: bytes, count: int) -> int:
    for _ in range(count):
        leader, sent = await group.of_leader(partial(Peer.send, topic=topic, body=body), group.peers)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
    return leader


async def let_lead(group: Group, replica: int) -> None:
    """Transfer the leadership; on a slow machine the group may elect another leader meanwhile."""

    async def leads() -> bool:
        states = {each: group.figure(each, "raft_state") for each in group.peers}
        for each, state in states.items():
            if state == "leader" and each != replica:
                await transfer(group, each, replica)
        return states[replica] == "leader" and group.is_leader_registered()

    await eventually_async(leads)


@pytest.mark.extended
@pytest.mark.parametrize("is_rebuilt", [False, True], ids=["joins", "rebuilds"])
def test_replica_without_the_records_of_a_queue_leads_and_continues_it(
    tmp_path: Path, is_rebuilt: bool
) -> None:
    """The other replicas are not needed to know where the queue ends, nor is a checkpoint of its own."""

    async def story() -> None:
        async with Group(tmp_path, **SMALL) as group:
            leader = await send(group, "T", b"old", 5)
            end = (await until_equal(group, leader))["queues"]["T", 0]
            await group.of_leader(partial(commit, group="audit", topic="T", offset=end), group.peers)
            other = (leader + 1) % 3
            if not is_rebuilt:
                await group.stop(other)
            leader = await send(group, "Later", bytes(3000), 10)
            await until_equal(group, leader)
            await delete_files(group, 2 * FILE_BYTES)
            if is_rebuilt:
                await group.stop(other)
                require_rebuild(group.root(other))
            await group.start(other)
            await eventually_async(lambda: other in group.peers and group.log_begin(other) == 2 * FILE_BYTES)
            found = await until_equal(group, leader)
            assert found["queues"]["T", 0] == end
            min_offset = await group.peers[other].offset(RequestCode.GET_MIN_OFFSET, "T")
            assert min_offset == end

            await let_lead(group, other)
            await send(group, "T", b"new", 1)
            await until_equal(group, other)
            for peer in group.peers.values():  # a send that was repeated is stored twice
                new = await peer.messages("T", end)
                assert [each.queue_offset for each in new] == [end + number for number in range(len(new))]
                assert {each.body for each in new} == {b"new"}

    run(story)

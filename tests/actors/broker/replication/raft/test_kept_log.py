"""The replicas of a Raft group keep the log that a group of `retention_waits_for` has not acknowledged."""

from __future__ import annotations

from pathlib import Path

from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_joining import FILE_BYTES, SMALL, fill, request_deletion
from tests.eventually import eventually_async

WAITS = {"retention_waits_for": ["T@lake"]}


def test_replicas_keep_unread_log_also_under_another_leader(tmp_path: Path) -> None:
    async def acknowledge(group: Group, leader: int, offset: int) -> int:
        """Commit an offset, wait until all replicas have it, and return where its log file begins."""
        await group.peers[leader].commit("lake", "T", offset)
        tables = [peer.tables.offsets for peer in group.peers.values()]
        await eventually_async(lambda: all(each.query("lake", "T", 0) == offset for each in tables))
        (unit,) = group.peers[leader].store.units("T", 0, offset, 1)
        return unit.physical_offset // FILE_BYTES * FILE_BYTES

    async def until_log_begins_at(group: Group, begin: int) -> None:
        async def begins() -> bool:
            await request_deletion(group, 5 * FILE_BYTES)
            return {group.log_begin(each) for each in group.peers} == {begin}

        await eventually_async(begins)

    async def story() -> None:
        async with Group(tmp_path, **SMALL) as group:
            for peer in group.peers.values():
                peer.broker.live.update(WAITS)
            leader = await fill(group, 16)
            begin = await acknowledge(group, leader, 4)
            assert 0 < begin < 5 * FILE_BYTES  # all files before that may be deleted; elections add records
            await until_log_begins_at(group, begin)
            await group.stop(leader)
            leader = await fill(group, 1)
            later = await acknowledge(group, leader, 8)
            assert begin < later < 5 * FILE_BYTES
            await until_log_begins_at(group, later)

    run(story)

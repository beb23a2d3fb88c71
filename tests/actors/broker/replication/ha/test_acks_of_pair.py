"""What a master with `replication: sync` has answered to consumers survives its kill and a promotion."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.replication.progress_log import MARK_GROUP, PROGRESS_TOPIC
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader
from actors.wire.raymq_requests import CommitOffsetsBody, OffsetCommit
from tests.actors.broker.brokers import A_DAY_MS, Peer, registered_broker, run, serving, slave_of
from tests.actors.broker.features.pop.pops import GROUP, Popped, ack, bodies, change, pop, send
from tests.actors.broker.features.transactions.transactions import copy_store
from tests.actors.broker.replication.ha.slaves import master_of, until
from tests.actors.broker.replication.ha.slaves import slave_of as fake_slave_of
from tests.eventually import eventually_async
from tests.ports import free_port

NO_CHECKPOINT = {"checkpoint_interval_ms": A_DAY_MS}


def mark_of(peer: Peer) -> int | None:
    """Return where the records begin that the broker's offsets may lack."""
    return peer.tables.offsets.query(MARK_GROUP, PROGRESS_TOPIC, 0)


async def create_topics(master: Peer, slave: Peer) -> None:
    """Create T and O, and wait until the slave has saved them, and all tables."""
    for topic in ("T", "O"):
        header = CreateTopicHeader(topic, read_queue_nums=1, write_queue_nums=1, perm=6)
        assert (await master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0
    await until(master, "in_sync_replicas", 2)
    tables = slave.tables
    await eventually_async(lambda: tables.topics.find("O") is not None and mark_of(slave) is not None)
    await until(slave, "missing_tables", "")
    await tables.save_definitions()
    await tables.save_offsets()


async def pop_all(peer: Peer, wanted: bytes, topic: str = "T", *, order: bool = False) -> list[Popped]:
    """Pop until this message is found; return everything that was popped."""
    found: list[Popped] = []

    async def is_found() -> bool:
        found.extend(await pop(peer, topic, order=order or None))
        return wanted in bodies(found)

    await eventually_async(is_found)
    return found


async def consume(peer: Peer) -> None:
    """Ack some messages of each kind, and commit offsets in both ways."""
    await send(peer, "0", "1", "2", "3", "4", "5")
    await send(peer, "a", "b", "c", topic="O")
    claimed = await pop_all(peer, b"5")
    assert bodies(claimed) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    for number in (0, 2, 3):
        assert (await ack(peer, claimed[number])).code == ResponseCode.SUCCESS
    ordered = await pop_all(peer, b"c", "O", order=True)
    assert (await ack(peer, ordered[0])).code == ResponseCode.SUCCESS
    assert (await ack(peer, ordered[2])).code == ResponseCode.SUCCESS
    assert (await change(peer, ordered[1], A_DAY_MS)).code == ResponseCode.SUCCESS
    await peer.heartbeat("c", "CG")
    assert (await peer.commit("CG", "T", 3)).code == ResponseCode.SUCCESS
    body = CommitOffsetsBody("CG", "c", [OffsetCommit("O", 0, 2, 0)]).encode()
    assert (await peer.ask(RayMQRequestCode.COMMIT_OFFSETS, body=body)).code == ResponseCode.SUCCESS


async def assert_kept(peer: Peer) -> None:
    """Check that nothing which was acked comes again, and nothing else is skipped."""
    assert (await peer.committed("CG", "T")).ext["offset"] == "3"
    assert (await peer.committed("CG", "O")).ext["offset"] == "2"
    assert (await peer.committed(GROUP, "T")).ext["offset"] == "1"
    assert bodies(await pop_all(peer, b"5")) == [b"1", b"4", b"5"]
    assert await pop(peer, "O", order=True) == []  # b is invisible
    (batch,) = peer.tables.orders.batches[f"O@{GROUP}"].values()
    assert batch.unacked == [1]


@pytest.mark.parametrize("replication", ["sync", "async"])
def test_acks_of_a_killed_sync_master_survive_the_promotion(tmp_path: Path, replication: str) -> None:
    """The slave has copied no table since the acks. With `async`, the operator accepts the log as it is."""
    double = {"replication": "sync", "ha_listen_port": free_port(), "store": NO_CHECKPOINT}

    async def story() -> None:
        async with (
            registered_broker(tmp_path, **double) as (_, master),
            slave_of(master, tmp_path, store=NO_CHECKPOINT) as slave,
        ):
            await create_topics(master, slave)
            await consume(master)
            copy_store(slave.broker.settings.store_root, tmp_path / "killed")
        promoted = master_of(tmp_path / "killed", replication, replica=1, store=NO_CHECKPOINT)
        async with serving(promoted) as peer:
            if replication == "async":
                await assert_kept(peer)
                assert mark_of(peer) is None
                return
            assert (await peer.committed("CG", "T")).ext["offset"] == "3"  # known at once
            async with fake_slave_of(peer):
                await until(peer, "hidden_bytes", 0)
                await assert_kept(peer)

    run(story)


def test_commits_that_no_slave_has_are_refused_but_not_undone_by_a_restart(tmp_path: Path) -> None:
    """Clients that send commits without a response would be moved back."""
    settings = master_of(tmp_path, "sync", store=NO_CHECKPOINT)

    async def story() -> None:
        async with serving(settings) as peer:
            async with fake_slave_of(peer):
                await until(peer, "in_sync_replicas", 2)
                await send(peer, *"012345")
                assert (await peer.commit("CG", "T", 2)).code == ResponseCode.SUCCESS
            await until(peer, "in_sync_replicas", 1)
            late = await peer.commit("CG", "T", 4)
            assert (late.code, "in-sync replicas" in late.remark) == (
                ResponseCode.SERVICE_NOT_AVAILABLE,
                True,
            )
            await peer.tables.save_offsets()
            copy_store(settings.store_root, tmp_path / "killed")
        for root in (tmp_path / "killed", tmp_path):
            again = master_of(root, "sync", store=NO_CHECKPOINT)
            async with serving(again) as peer:
                assert (await peer.committed("CG", "T")).ext["offset"] == "4"

    run(story)

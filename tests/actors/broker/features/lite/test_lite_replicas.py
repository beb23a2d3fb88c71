"""Lite topics on replicas: offsets and messages after a change of leader, and on a slave."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from actors.broker.core.role import Role
from actors.broker.features.lite.lite_expiry import REPLICA_MS
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader
from store.dispatch.saved_sink import read_state
from store.lite.lite_index import LiteIndex, lmq_name
from tests.actors.broker.brokers import (
    Peer,
    registered_broker,
    run,
    run_now,
    settings_of,
    slave_of,
    with_broker,
)
from tests.actors.broker.features.lite import lite_peers as lite
from tests.actors.broker.replication.raft.groups import Group
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

TTL_MS = 3_600_000


def sent(peer: Peer) -> list[tuple[str, str]]:
    """Return name and offset of all lite messages in the log of a broker, in its order."""
    found = []
    for queue_id in range(4):
        for offset in range(peer.store.max_offset(lite.TOPIC, queue_id)):
            [unit] = peer.store.units(lite.TOPIC, queue_id, offset, 1)
            record = bytes(peer.store.record_at(unit.physical_offset))
            place = [
                record.partition(name)[2].partition(b"\x02")[0].decode()
                for name in (b"$LiteT$", b"OFFSET\x01")
            ]
            found.append((place[0], place[1]))
    return found


def test_offsets_continue_after_a_change_of_leader(tmp_path: Path) -> None:
    async def send_one(group: Group, name: str, among: Iterable[int] = range(3)) -> int:
        async def one(peer: Peer) -> RemotingCommand:
            return await peer.send(lite.TOPIC, b"x", 2, f"__LITE_TOPIC\x01{name}\x02")

        leader, response = await group.of_leader(one, among)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return leader

    async def story() -> None:
        async with Group(tmp_path) as group:

            async def create(peer: Peer) -> RemotingCommand:
                header = CreateTopicHeader(lite.TOPIC, 4, 4, 6, attributes="+message.type=LITE")
                return await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())

            _, response = await group.of_leader(create)
            assert response.code == ResponseCode.SUCCESS, response.remark
            for name in ("a", "b", "a"):
                first = await send_one(group, name)
            others = [each for each in range(3) if each != first]
            group.isolate(first)
            for name in ("a", "b", "c"):
                second = await send_one(group, name, others)
            group.heal()
            for name, count in (("a", 3), ("b", 2), ("c", 1)):
                offsets = [int(offset) for each, offset in sent(group.peers[second]) if each == name]
                assert offsets == list(range(len(offsets)))
                assert count <= len(offsets) == await lite.end_of(group.peers[second], name)
            await eventually_async(lambda: sent(group.peers[first]) == sent(group.peers[second]))

    run(story)


def test_slave_has_the_lite_topics_of_its_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path, replication="async") as (_, master):
            await lite.create_topic(master)
            await lite.send(master, "a", "0", "1")
            async with slave_of(master, tmp_path) as slave:
                await lite.send(master, "b", "0")
                await eventually_async(lambda: sent(slave) == sent(master))
                root = slave.broker.settings.store_root
        index = LiteIndex(root)
        index.restore(read_state(root / "sinks" / "lite").state)
        assert list(index.names(lite.TOPIC)) == ["a", "b"]
        assert [index.max_offset(lite.TOPIC, name) for name in "ab"] == [2, 1]

    run(story)


def test_slave_finds_lite_messages_of_a_topic_that_had_plain_ones(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path, replication="async") as (_, master):
            await lite.create_topic(master, message_type="NORMAL")
            async with slave_of(master, tmp_path) as slave:
                await master.send(lite.TOPIC, b"plain", 2)
                await eventually_async(lambda: slave.store.max_offset(lite.TOPIC, 2) == 1)
                await lite.create_topic(master)
                await lite.send(master, "a", "0", "1")
                await eventually_async(lambda: slave.store.max_offset(lmq_name(lite.TOPIC, "a"), 0) == 2)

    run(story)


def test_new_master_removes_what_has_expired_before(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        queue = lmq_name(lite.TOPIC, "a")

        async def end() -> int:
            return await peer.offset(RequestCode.GET_MAX_OFFSET, queue)

        await lite.create_topic(peer, **{"lite.topic.expiration": "60"})
        await lite.create_group(peer)
        await lite.sync(peer, "PARTIAL_ADD", "a")
        await lite.send(peer, "a", "0", "1")
        for each in await lite.pop(peer):
            await lite.ack(peer, each)
        role = peer.role
        await role.become(Role.SLAVE, 0)
        clock.advance(TTL_MS + 1_000)
        await run_now(peer.broker, "lite-replica-expiry")
        assert await end() == 2  # its master may have got a message in time
        await role.become(Role.MASTER, 0)
        assert (await end(), (await peer.committed(lite.GROUP, queue)).code) == (
            0,
            ResponseCode.QUERY_NOT_FOUND,
        )
        await lite.sync(peer, "PARTIAL_ADD", "a", "b")
        await lite.send(peer, "a", "again")
        assert [(each.offset, each.body) for each in await lite.pop(peer)] == [(0, b"again")]

        await role.become(Role.SLAVE, 0)
        clock.advance(TTL_MS + REPLICA_MS + 1_000)
        await run_now(peer.broker, "lite-replica-expiry")
        assert await end() == 0

    with_broker(story, settings_of(tmp_path), clock)

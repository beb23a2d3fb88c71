"""A master and its slave, both of RayMQ, which find each other through a nameserver."""

from __future__ import annotations

from pathlib import Path

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader
from tests.actors.broker.brokers import Peer, registered_broker, run, slave_of
from tests.actors.broker.replication.ha.ha_port import log_of
from tests.eventually import eventually_async
from tests.ports import free_port


def state_of(slave: Peer) -> object:
    return slave.broker.describe()["replication_state"]


async def send(peer: Peer, body: bytes) -> int:
    return (await peer.send("T", body)).code


def test_double_write_waits_for_the_slave_and_is_refused_without_it(tmp_path: Path) -> None:
    double = {"replication": "sync", "in_sync_replicas": 2, "ha_listen_port": free_port()}

    async def story() -> None:
        async with registered_broker(tmp_path, **double) as (_, master):
            header = CreateTopicHeader("T", read_queue_nums=1, write_queue_nums=1, perm=6)
            assert (await master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0
            assert await send(master, b"early") == ResponseCode.SYSTEM_ERROR
            async with slave_of(master, tmp_path, slave_read_enable=True) as slave:
                await eventually_async(lambda: state_of(slave) == "following")

                async def is_accepted() -> bool:
                    return await send(master, b"first") == 0

                await eventually_async(is_accepted)
                theirs, ours = (peer.store for peer in (master, slave))
                assert ours.positions.flushed == theirs.positions.written
                for number in range(20):
                    assert await send(master, b"%d" % number) == 0
                assert log_of(ours) == log_of(theirs)
                await eventually_async(lambda: slave.tables.topics.find("T") is not None)
                bodies = [message.body for message in await slave.messages("T")]
                assert bodies == [b"first", *(b"%d" % number for number in range(20))]

            async def is_refused() -> bool:
                return await send(master, b"late") == ResponseCode.SYSTEM_ERROR

            await eventually_async(is_refused)

    run(story)

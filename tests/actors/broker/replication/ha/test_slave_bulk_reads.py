"""Bulk reads and actor handles at a pair whose master is gone: `replica="any"` reads from the slave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader
from cluster.client import Admin
from cluster.client.errors import BrokerUnreachable, ConfigInvalid
from jobs.job_errors import FetchFailed
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import plan_read
from store.message.record import decode_records
from tests.actors.broker.brokers import Peer, hang_disk, registered_broker, run, slave_of
from tests.eventually import eventually_async
from tests.ports import free_port


@asynccontextmanager
async def pair(root: Path, **settings: Any) -> AsyncIterator[tuple[str, Peer, Peer]]:
    """Yield the nameserver, a master and its slave, both of which have topic T with the message "first"."""
    ha = {"replication": "async", "ha_listen_port": free_port()}
    async with (
        registered_broker(root, store={"flush": "async"}, **ha) as (nameserver, master),
        slave_of(master, root, **settings) as slave,
    ):
        header = CreateTopicHeader("T", read_queue_nums=1, write_queue_nums=1, perm=6)
        assert (await master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0
        assert (await master.send("T", b"first")).code == 0
        store, topics = slave.store, slave.tables.topics
        await eventually_async(lambda: store.max_offset("T", 0) == 1 and topics.find("T") is not None)
        yield nameserver.address, master, slave


async def until_gone(nameserver: str, master: Peer) -> None:
    """Unregister the master, and wait until the route has only the slave."""
    await master.broker.graph.registration.stop()

    def has_left() -> bool:
        with Admin(nameserver) as admin:
            return admin.route("T").masters() == {}

    await eventually_async(lambda: asyncio.to_thread(has_left))


def read(nameserver: str, replica: Any = "any", *, map_files: bool = False) -> list[bytes]:
    """Return the bodies that a bulk read of topic T returns."""
    options = ReadOptions(
        TopicNames(("T",)), nameservers=nameserver, columns=("body",), replica=replica, map_files=map_files
    )
    plan = plan_read(options)
    return [body for batch in plan.reader(plan.ranges).read_all() for body in batch["body"].to_pylist()]


async def ask(method: Any, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = msgpack.unpackb(await method(msgpack.packb({"v": 1, "topic": "T", **fields})))
    return reply


def test_without_a_master_any_replica_reads_what_the_slave_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        settings = {"store": {"flush": "sync"}, "slave_read_enable": True}
        async with pair(tmp_path, **settings) as (nameserver, master, slave):
            assert await asyncio.to_thread(read, nameserver) == [b"first"]
            may_flush = hang_disk(monkeypatch)
            positions = slave.store.positions
            confirmed = positions.confirmed
            assert (await master.send("T", b"second")).code == 0
            await eventually_async(lambda: positions.written > confirmed)
            # While the master is registered, it is read.
            assert await asyncio.to_thread(read, nameserver) == [b"first", b"second"]
            await until_gone(nameserver, master)
            for map_files in (False, True):
                assert await asyncio.to_thread(read, nameserver, map_files=map_files) == [b"first"]
            with pytest.raises(BrokerUnreachable, match="has no master"):
                await asyncio.to_thread(read, nameserver, "master")
            may_flush.set()

    run(story)


def test_fetched_read_from_a_slave_names_the_setting_that_permits_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (nameserver, master, _):
            await until_gone(nameserver, master)
            with pytest.raises(FetchFailed, match=r"PULL_RECORDS is not served by.*slave_read_enable"):
                await asyncio.to_thread(read, nameserver)
            assert await asyncio.to_thread(read, nameserver, map_files=True) == [b"first"]

    run(story)


def test_unknown_replica_is_refused_with_both_values() -> None:
    with (
        Admin("127.0.0.1:1") as admin,
        pytest.raises(ConfigInvalid, match="'slave': it must be 'master' or 'any'"),
    ):
        admin.splits("T", replica="slave")  # type: ignore[arg-type]


def test_handle_of_a_slave_reads_only_with_any_replica(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path, slave_read_enable=True) as (_, master, slave):
            handle = slave.broker.handle
            for refused in (
                await ask(handle.read, queue=0, offset=0),
                await ask(handle.offsets, replica="master"),
            ):
                assert refused["code"] == ResponseCode.SLAVE_NOT_AVAILABLE
                assert "call the actor of the master, or give replica = 'any'" in refused["remark"]
            found = await ask(handle.read, queue=0, offset=0, replica="any")
            assert [record.body for record in decode_records(found["records"])] == [b"first"]
            assert (await ask(handle.offsets, replica="any"))["queues"] == [[0, 0, 1, -1]]
            invalid = await ask(handle.read, queue=0, offset=0, replica="slave")
            assert "'slave': it must be 'master' or 'any'" in invalid["remark"]
            assert (await ask(master.broker.handle.read, queue=0, offset=0, replica="any"))["code"] == 0

    run(story)

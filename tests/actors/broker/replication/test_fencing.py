"""A former master that runs on is fenced when a nameserver has registered the master of a greater epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.broker.service import BrokerService
from actors.nameserver.service import NameserverService
from actors.raft.epoch_file import FENCED_FILE
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader
from cluster.client import aio
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from store.store_errors import StoreError
from tests.actors.broker.brokers import (
    A_DAY_MS,
    TIMEOUT_MS,
    Peer,
    registered_broker,
    run,
    serving,
    settings_of,
)
from tests.actors.broker.brokers import slave_of as real_slave_of
from tests.actors.broker.replication.ha.slaves import figure, slave_of, until
from tests.actors.broker.replication.ha.test_slave_registration import ids_of
from tests.eventually import eventually_async
from tests.ports import free_port

TOPIC = CreateTopicHeader("T", read_queue_nums=1, write_queue_nums=1, perm=6).to_ext()
REMEDY = "another replica was promoted, restart this one with role: slave"
FENCED = ResponseCode.SERVICE_NOT_AVAILABLE


def replicated(replication: str) -> dict[str, Any]:
    # The former master registers when the nameserver has closed its connection, not after the interval.
    return {
        "replication": replication,
        "ha_listen_port": free_port(),
        "register_interval_ms": A_DAY_MS,
    }


@asynccontextmanager
async def promoted(nameserver: NameserverService, root: Path, epoch: int) -> AsyncIterator[Peer]:
    """Yield a client of another replica that is started as the master of an epoch."""
    settings = settings_of(root, nameservers=nameserver.address, group_epoch=epoch, replica=1)
    async with serving(settings) as peer:
        yield peer


@pytest.mark.parametrize("compiled", [True, False])
def test_former_master_refuses_all_changes_after_a_promotion(tmp_path: Path, compiled: bool) -> None:
    """The group had no epochs before: its first promotion begins epoch 1."""

    async def story() -> None:
        own = {**replicated("async"), "compiled_turn": compiled}
        async with registered_broker(tmp_path / "former", **own) as (nameserver, former):
            for _ in range(3):  # the compiled path knows the queue from the second one on
                assert (await former.send("T")).code == 0
            written = figure(former, "written")
            async with promoted(nameserver, tmp_path / "new", 1) as master:
                await until(former, "role", "fenced")
                assert (await former.send("T")).code == FENCED
                for response in (
                    await former.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC),
                    await former.pull("T"),
                    await former.committed("CG", "T"),
                ):
                    assert response.code == FENCED
                    assert REMEDY in (response.remark or "")
                    assert f"registered at {master.broker.address}, with" in (response.remark or "")
                assert (await former.heartbeat("client", "CG", T="*")).code == 0
                assert figure(former, "written") == written
                assert REMEDY in figure(former, "write_refusal")
                status = orjson.loads((await former.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
                assert (status["master"], status["inSyncSlaveNums"]) == (False, 0)
                assert await ids_of(nameserver, master) == {0: master.broker.address}
                assert (await master.send("T")).code == 0
            assert (await former.send("T")).code == FENCED  # also if the new master has gone

    run(story)


def test_fenced_master_does_not_start_again_as_the_master_of_its_epoch(tmp_path: Path) -> None:
    """It refuses from the start, also if no nameserver knows the new master."""

    async def story() -> None:
        path = tmp_path / "store" / FENCED_FILE
        async with registered_broker(tmp_path, **replicated("async"), group_epoch=1) as (nameserver, former):
            async with promoted(nameserver, tmp_path / "new", 2) as master:
                await eventually_async(path.exists)
                address = master.broker.address
            assert (await former.send("T")).code == FENCED
        for epoch in (0, 1):
            with pytest.raises(
                StoreError, match=f"master of group_epoch 1: .* at {address}, .* raise group_"
            ):
                await BrokerService(settings_of(tmp_path, group_epoch=epoch), SystemClock()).start()
        async with serving(settings_of(tmp_path, role="slave", group_epoch=2)):
            assert path.exists()
        path.write_text("{}")
        with pytest.raises(StoreError, match=r"fenced.json: is damaged: .* with role: slave"):
            await BrokerService(settings_of(tmp_path, group_epoch=3), SystemClock()).start()
        path.write_text('{"epoch": 1, "reason": "promoted"}')
        for _ in range(2):
            async with serving(settings_of(tmp_path, group_epoch=3)) as again:
                assert (await again.send("T")).code == 0
            assert not path.exists()

    run(story)


def test_partitioned_master_with_sync_replication_acknowledges_nothing(tmp_path: Path) -> None:
    """Its slaves do not respond; the waiting sends fail as soon as it can register again."""

    async def story() -> None:
        async with (
            registered_broker(tmp_path / "former", **replicated("sync")) as (nameserver, former),
            slave_of(former) as slave,
        ):
            await until(former, "in_sync_replicas", 2)
            assert (await former.send("T", b"replicated")).code == 0
            slave.acknowledges = False
            sends = [asyncio.ensure_future(former.send("T", b"lost")) for _ in range(5)]
            await until(former, "sends_waiting", 5)
            assert [each.body for each in await former.messages("T")] == [b"replicated"]
            async with promoted(nameserver, tmp_path / "new", 1):
                assert not any(each.done() for each in sends)
                await until(former, "role", "fenced")
                for each in await asyncio.gather(*sends):
                    assert each.code == ResponseCode.SYSTEM_ERROR
                    assert REMEDY in (each.remark or "")
            assert figure(former, "confirmed") < figure(former, "written")

    run(story)


def test_failover_of_a_sync_pair_keeps_all_acknowledged_messages(tmp_path: Path) -> None:
    """The slave is promoted while its master runs on and gets sends."""
    acknowledged: list[bytes] = []

    async def send(peer: Peer) -> bool:
        body = b"%d" % len(acknowledged)
        is_acknowledged = (await peer.send("T", body)).code == 0
        if is_acknowledged:
            acknowledged.append(body)
        return is_acknowledged

    async def story() -> None:
        async with registered_broker(tmp_path, **replicated("sync")) as (nameserver, former):
            await former.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
            async with real_slave_of(former, tmp_path) as slave:
                await eventually_async(lambda: send(former))
                for _ in range(20):
                    assert await send(former)
                await until(slave, "missing_tables", "")  # until then it cannot be promoted
            await until(former, "in_sync_replicas", 1)
            assert not await send(former)  # its slave has left
            async with promoted(nameserver, tmp_path / "replica-1", 1) as master:
                await until(former, "role", "fenced")
                assert not await send(former)
                await master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
                assert await send(master)
                assert [each.body for each in await master.messages("T")] == acknowledged

    run(story)


def test_producer_of_a_former_master_continues_at_the_new_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path / "former", **replicated("async")) as (nameserver, former):
            await former.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
            async with aio.Producer(nameserver.address, "PG") as producer:
                await producer.send("T", b"at the former master")
                async with promoted(nameserver, tmp_path / "new", 1) as master:
                    await master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
                    await until(former, "role", "fenced")
                    await producer.send("T", b"at the new master")
                    assert [each.body for each in await master.messages("T")] == [b"at the new master"]

    run(story)


def test_consumer_of_a_former_master_continues_at_the_new_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path / "former", **replicated("async")) as (nameserver, former):
            await former.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
            await former.send("T", b"replicated")
            async with aio.PullConsumer(nameserver.address, "CG") as consumer:
                await consumer.assign([MessageQueue("T", "broker-a", 0)])
                assert [each.body for each in await consumer.poll(timeout_ms=TIMEOUT_MS)] == [b"replicated"]
                await former.until_held(1)
                async with promoted(nameserver, tmp_path / "new", 1) as master:
                    await master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
                    for body in (b"replicated", b"at the new master"):
                        await master.send("T", body)
                    [message] = await consumer.poll(timeout_ms=TIMEOUT_MS)
                    assert message.body == b"at the new master"

    run(story)


def test_slave_that_is_refused_by_a_nameserver_is_not_fenced(tmp_path: Path) -> None:
    """Two slaves with one replica number are a mistake of the configuration, not a promotion."""

    async def story() -> None:
        async with registered_broker(tmp_path / "master", group_epoch=2) as (nameserver, master):
            own = {"role": "slave", "replica": 1, "nameservers": nameserver.address}
            first, second = (
                serving(settings_of(tmp_path / f"{epoch}", group_epoch=epoch, **own)) for epoch in (2, 1)
            )
            async with first as registered, second as refused:
                addresses = {0: master.broker.address, 2: registered.broker.address}
                assert await ids_of(nameserver, master) == addresses
                assert not refused.broker.graph.registration.is_fenced

    run(story)

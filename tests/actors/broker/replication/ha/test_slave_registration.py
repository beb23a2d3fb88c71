"""The broker id of a registration follows the role of the broker."""

from __future__ import annotations

from pathlib import Path

import orjson

from actors.broker.core.role import Role
from actors.nameserver.service import NameserverService
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicHeader
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, registered_broker, run, slave_of
from tests.eventually import eventually_async
from tests.ports import free_port


async def ids_of(nameserver: NameserverService, peer: Peer) -> dict[int, str]:
    """Return the addresses of the broker group in a route, by broker id."""
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("BenchmarkTest").to_ext())
    response = await peer.client.invoke(nameserver.address, command, TIMEOUT_MS)
    (group,) = TopicRouteData.decode(response.body).broker_datas
    return dict(group.broker_addrs)


def test_slave_registers_its_replica_plus_one_and_finds_its_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, master):
            address = master.broker.address
            async with slave_of(master, tmp_path) as slave:
                assert await ids_of(nameserver, master) == {0: address, 2: slave.broker.address}
                assert slave.broker.graph.registration.master.master_addr == address
            assert await ids_of(nameserver, master) == {0: address}

    run(story)


def test_ha_status_of_a_slave_names_its_master_and_the_end_of_its_log(tmp_path: Path) -> None:
    own = {"replication": "async", "ha_listen_port": free_port()}

    async def story() -> None:
        async with registered_broker(tmp_path, **own) as (_, master), slave_of(master, tmp_path) as slave:
            await master.send("T")
            written = master.broker.describe()["written"]
            await eventually_async(lambda: slave.broker.describe()["written"] == written)
            status = orjson.loads((await slave.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
            assert status["master"] is False
            client = status["haClientRuntimeInfo"]
            host = master.broker.address.partition(":")[0]
            assert client["masterAddr"] == f"{host}:{own['ha_listen_port']}"
            assert client["maxOffset"] == written

    run(story)


def test_change_of_role_replaces_the_registered_id(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, master), slave_of(master, tmp_path) as slave:
            await master.role.become(Role.STOPPED, 1)
            await slave.role.become(Role.MASTER, 1)
            assert await ids_of(nameserver, slave) == {0: slave.broker.address}
            await slave.role.become(Role.SLAVE, 1)
            await master.role.become(Role.MASTER, 1)
            assert await ids_of(nameserver, slave) == {0: master.broker.address, 2: slave.broker.address}

    run(story)

"""The broker id of a registration follows the role of the broker."""

from __future__ import annotations

from pathlib import Path

from actors.broker.role import Role
from actors.nameserver.service import NameserverService
from actors.remoting.bodies.routes import TopicRouteData
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import TopicHeader
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, registered_broker, run, slave_of


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


def test_change_of_role_replaces_the_registered_id(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, master), slave_of(master, tmp_path) as slave:
            await master.broker.graph.role.become(Role.STOPPED, 1)
            await slave.broker.graph.role.become(Role.MASTER, 1)
            assert await ids_of(nameserver, slave) == {0: slave.broker.address}
            await slave.broker.graph.role.become(Role.SLAVE, 1)
            await master.broker.graph.role.become(Role.MASTER, 1)
            assert await ids_of(nameserver, slave) == {0: master.broker.address, 2: slave.broker.address}

    run(story)

"""A change of role starts and stops services in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from actors.broker.core.role import BrokerRole, Role, RoleService, periodic
from actors.supervisor import Supervisor
from store.common.clock import SystemClock
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.eventually import eventually_async


def test_role_change_stops_services_in_reverse_order_and_starts_new_ones() -> None:
    calls: list[str] = []

    def service(name: str, *roles: Role) -> RoleService:
        async def start() -> None:
            calls.append(f"{name} starts")

        async def stop() -> None:
            calls.append(f"{name} stops")

        return RoleService(name, frozenset(roles), start, stop)

    async def story() -> None:
        role = BrokerRole(
            (service("a", Role.MASTER), service("b", Role.MASTER, Role.FENCED), service("c", Role.FENCED))
        )
        await asyncio.gather(role.become(Role.MASTER, 1), role.become(Role.MASTER, 1))
        await role.become(Role.FENCED, 2)
        assert (role.role, role.state_version) == (Role.FENCED, 2)
        await role.become(Role.STOPPED, 2)

    asyncio.run(story())
    assert calls == ["a starts", "b starts", "a stops", "c starts", "c stops", "b stops"]


def test_stopped_periodic_service_has_finished_its_action_and_starts_again() -> None:
    calls: list[str] = []

    async def act() -> None:
        calls.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            calls.append("ends")

    async def story() -> None:
        supervisor = Supervisor(SystemClock())
        role = BrokerRole((periodic(supervisor, "acting", {Role.MASTER}, 1, act),))
        for times in (1, 2):
            await role.become(Role.MASTER, 1)
            await eventually_async(lambda times=times: calls.count("begins") == times)
            await role.become(Role.STOPPED, 1)
            assert calls == ["begins", "ends"] * times
        await supervisor.stop()

    asyncio.run(story())


def test_broker_is_fenced_when_another_process_opens_its_store(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert peer.broker.describe()["role"] == "master"
        epoch = peer.broker.settings.store_root / "raymq.epoch"
        successor = epoch.with_name("raymq.epoch.new")
        successor.write_text(str(int(epoch.read_text()) + 1))
        successor.replace(epoch)

        async def is_fenced() -> bool:
            await peer.send("T")  # an append compares the epoch
            return peer.broker.describe()["role"] == "fenced"

        await eventually_async(is_fenced)

    with_broker(story, settings_of(tmp_path))

"""A nameserver of RocketMQ ignores the registration of a former master without a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.core.role import Role
from actors.broker.service import BrokerService
from actors.wire.bodies.routes import ClusterInfo
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of
from tests.compat.build import JavaKit
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually_async

pytestmark = [pytest.mark.java, pytest.mark.extended]


def test_former_master_is_not_registered_but_not_fenced_either(kit: JavaKit, tmp_path: Path) -> None:
    """So the former master of such a cluster must be stopped (docs/replication.md#fencing)."""
    rocketmq = RocketMQ(kit, tmp_path / "rocketmq")

    async def story() -> None:
        nameserver = rocketmq.nameserver_address
        former, master = (
            BrokerService(
                settings_of(tmp_path / f"{epoch}", nameservers=nameserver, group_epoch=epoch), SystemClock()
            )
            for epoch in (1, 2)
        )
        await former.start()
        await master.start()
        peer = Peer(former)
        try:

            async def addresses() -> dict[int, str]:
                command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                response = await peer.client.invoke(nameserver, command, TIMEOUT_MS)
                return dict(ClusterInfo.decode(response.body).brokers["broker-a"].broker_addrs)

            assert await addresses() == {0: master.address}
            former.announce()
            registered: list[bool] = []
            former.graph.registration.when_registered(lambda: registered.append(True))
            await eventually_async(lambda: registered)
            assert await addresses() == {0: master.address}
            assert former.graph.role.role is Role.MASTER
            assert (await peer.send("T")).code == 0
        finally:
            await peer.client.close()
            await master.stop()
            await former.stop()

    rocketmq.start_nameserver()
    try:
        run(story)
    finally:
        rocketmq.stop()

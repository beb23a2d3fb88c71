"""GET_CONSUMER_LIST_BY_GROUP where the group's rebalancer does not know all, or does not answer.

A Java client that gets no list, or one that it is not in, consumes nothing for 20 s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.group import rebalancer_link
from actors.broker.group.rebalancer_link import MEMBERS_TIMEOUT_MS
from actors.broker.service import BrokerService
from actors.rebalancer.group import Group
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import RebalancerService, build_rebalancer
from actors.remoting.bodies.groups import ConsumerData, GroupMembers, HeartbeatData, SubscriptionData
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import ConsumerGroupHeader
from actors.remoting.request import RequestContext
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from store.clock import SystemClock
from tests.actors.broker.brokers import A_DAY_MS, TIMEOUT_MS, Peer, run, settings_of
from tests.eventually import eventually_async

JAVA_CLIENT_WAITS_MS = 3_000


async def beat(peer: Peer, client_id: str) -> None:
    consumer = ConsumerData("G", subscriptions=[SubscriptionData("T", "*")])
    command = RemotingCommand(RequestCode.HEART_BEAT, body=HeartbeatData(client_id, [consumer]).encode())
    command.language = "JAVA"
    await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)


async def members(peer: Peer) -> tuple[str, ...]:
    command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader("G").to_ext())
    answer = await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return GroupMembers.decode(answer.body).members


@asynccontextmanager
async def serving(settings: BrokerSettings) -> AsyncIterator[BrokerService]:
    broker = BrokerService(settings, SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def rebalancer_at(root: Path, port: int = 0) -> RebalancerService:
    rebalancer = build_rebalancer(RebalancerSettings(data_dir=root, listen_port=port), SystemClock())
    await rebalancer.start()
    return rebalancer


async def heard(rebalancer: RebalancerService) -> Group:
    """The group, once the rebalancer has heard of it."""
    return await eventually_async(lambda: rebalancer.coordinator.groups.get("G"))


def test_a_member_is_in_the_list_that_it_asks_for(tmp_path: Path) -> None:
    async def story() -> None:
        rebalancer = await rebalancer_at(tmp_path / "r")
        brokers = settings_of(tmp_path, rebalancers=[rebalancer.address])
        async with serving(brokers) as broker:
            one, two = Peer(broker), Peer(broker)
            await beat(one, "client-1")
            await beat(two, "client-2")
            assert await members(one) == await members(two) == ("client-1", "client-2")

            await rebalancer.stop()
            rebalancer = await rebalancer_at(tmp_path / "r", rebalancer.server.port)
            await beat(one, "client-1")  # the other's comes in half a minute
            group = await heard(rebalancer)

            async def knows_both() -> bool:
                assert "client-2" in await members(two)
                return group.members().members == ("client-1", "client-2")

            await eventually_async(knows_both)
            assert await members(one) == ("client-1", "client-2")
            for peer in (one, two):
                await peer.client.close()
        await rebalancer.stop()

    run(story)


def test_a_rebalancer_that_does_not_answer_keeps_no_client_waiting_for_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert JAVA_CLIENT_WAITS_MS > MEMBERS_TIMEOUT_MS
    monkeypatch.setattr(rebalancer_link, "MEMBERS_TIMEOUT_MS", 1)

    def silent(_: RequestContext) -> None:
        """Never answers."""

    async def story() -> None:
        table = RequestTable()
        table.add(RayMQRequestCode.FORWARD_HEARTBEAT, silent)
        table.add(RayMQRequestCode.GROUP_MEMBERS, silent)
        rebalancer = RemotingServer(table, SystemClock())
        await rebalancer.start("127.0.0.1", 0)
        brokers = settings_of(
            tmp_path, rebalancers=[f"127.0.0.1:{rebalancer.port}"], rebalancer_timeout_ms=A_DAY_MS
        )
        async with serving(brokers) as broker:
            peer = Peer(broker)
            await beat(peer, "client-1")
            assert await members(peer) == ("client-1",)
            await peer.client.close()
        await rebalancer.stop()

    run(story)

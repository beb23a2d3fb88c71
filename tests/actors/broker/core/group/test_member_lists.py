"""GET_CONSUMER_LIST_BY_GROUP if the group's rebalancer does not know all members, or does not respond.

A Java client that gets no list, or a list without itself, consumes nothing for 20 s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.group import rebalancer_link
from actors.broker.core.group.rebalancer_link import MEMBERS_TIMEOUT_MS
from actors.broker.service import BrokerService
from actors.rebalancer.group import Group
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import RebalancerService, build_rebalancer
from actors.transport.request import RequestContext
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import (
    AssignedQueue,
    ConsumerData,
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupReply,
    SyncGroupRequest,
)
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerGroupHeader
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from tests.actors.broker.brokers import A_DAY_MS, TIMEOUT_MS, Peer, run, settings_of
from tests.eventually import eventually_async

JAVA_CLIENT_WAITS_MS = 3_000


async def send_heartbeat(peer: Peer, client_id: str) -> None:
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
async def running_broker(settings: BrokerSettings) -> AsyncIterator[BrokerService]:
    broker = BrokerService(settings, SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def start_rebalancer(root: Path, port: int = 0) -> RebalancerService:
    rebalancer = build_rebalancer(RebalancerSettings(data_dir=root, listen_port=port), SystemClock())
    await rebalancer.start()
    return rebalancer


async def registered_group(rebalancer: RebalancerService) -> Group:
    """Wait until the rebalancer knows group G, and return it."""
    return await eventually_async(lambda: rebalancer.coordinator.groups.get("G"))


def test_requesting_member_is_in_its_member_list(tmp_path: Path) -> None:
    async def story() -> None:
        rebalancer = await start_rebalancer(tmp_path / "r")
        brokers = settings_of(tmp_path, rebalancers=[rebalancer.address])
        async with running_broker(brokers) as broker:
            one, two = Peer(broker), Peer(broker)
            await send_heartbeat(one, "client-1")
            await send_heartbeat(two, "client-2")

            async def both_are_members() -> bool:  # the broker forwards heartbeats without waiting
                return await members(one) == await members(two) == ("client-1", "client-2")

            await eventually_async(both_are_members)
            await rebalancer.stop()
            rebalancer = await start_rebalancer(tmp_path / "r", rebalancer.server.port)
            await send_heartbeat(one, "client-1")  # client-2 sends its next heartbeat half a minute later
            group = await registered_group(rebalancer)

            async def knows_both() -> bool:
                assert "client-2" in await members(two)
                return group.members().members == ("client-1", "client-2")

            await eventually_async(knows_both)
            assert await members(one) == ("client-1", "client-2")
            for peer in (one, two):
                await peer.client.close()
        await rebalancer.stop()

    run(story)


def test_member_list_does_not_wait_for_a_silent_rebalancer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert JAVA_CLIENT_WAITS_MS > MEMBERS_TIMEOUT_MS
    monkeypatch.setattr(rebalancer_link, "MEMBERS_TIMEOUT_MS", 1)

    def silent(_: RequestContext) -> None:
        """Send no response."""

    async def story() -> None:
        table = RequestTable()
        table.add(RayMQRequestCode.FORWARD_HEARTBEAT, silent)
        table.add(RayMQRequestCode.GROUP_MEMBERS, silent)
        rebalancer = RemotingServer(table, SystemClock())
        await rebalancer.start("127.0.0.1", 0)
        brokers = settings_of(
            tmp_path, rebalancers=[f"127.0.0.1:{rebalancer.port}"], rebalancer_timeout_ms=A_DAY_MS
        )
        async with running_broker(brokers) as broker:
            peer = Peer(broker)
            await send_heartbeat(peer, "client-1")
            assert await members(peer) == ("client-1",)
            await peer.client.close()
        await rebalancer.stop()

    run(story)


def test_generations_are_kept_only_of_queues_that_exist(tmp_path: Path) -> None:
    """A member owns what it reports, and may report any name."""

    async def story() -> None:
        rebalancer = await start_rebalancer(tmp_path / "r")
        async with running_broker(settings_of(tmp_path, rebalancers=[rebalancer.address])) as broker:
            peer = Peer(broker)
            await peer.send("T")
            await peer.commit("G", "T", 0)
            queues = [MessageQueue(*each) for each in (("T", "broker-a", 0), ("T", "broker-a", 99))]
            queues.append(MessageQueue("None", "broker-a", 0))
            sync = SyncGroupRequest("G", "c", owned=[AssignedQueue(each, 5) for each in queues])
            answer = await peer.ask(RayMQRequestCode.SYNC_GROUP, body=sync.encode())
            assert sorted(each.queue for each in SyncGroupReply.decode(answer.body).assigned) == sorted(
                queues
            )
            assert broker.graph.tables.offsets.generations == {"T@G": {0: 5}}
            await peer.client.close()
        await rebalancer.stop()

    run(story)

"""Several connections with one client id: containers with one address and pid, and other users' clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData, SyncGroupRequest
from actors.wire.bodies.locks import LockedQueues, LockRequest
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import UnregisterClientHeader
from actors.wire.hot_headers import PullMessageHeader
from store.message.message_queue import MessageQueue
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.core.auth.access_peers import Connect, SigningPeer, with_access
from tests.actors.broker.features.transactions.transactions import begin, check, manual
from tests.eventually import eventually_async

ID = "10.0.0.1@1"
UNREGISTER = UnregisterClientHeader(ID, "PG", "CG").to_ext()


async def pull_without_subscription(peer: Peer) -> int:
    header = PullMessageHeader("CG", "T", 0, 0)
    return (await peer.ask(RequestCode.PULL_MESSAGE, header.to_ext())).code


@pytest.mark.parametrize("ending", ["closed", "unregistered", "unregistered by another connection"])
def test_survivor_of_two_clients_with_one_id_stays_a_member(tmp_path: Path, clock: Any, ending: str) -> None:
    checked: list[int] = []
    table = RequestTable()

    def count(context: RequestContext) -> None:
        checked.append(context.command.code)

    table.add(RequestCode.CHECK_TRANSACTION_STATE, count)

    async def story(peer: Peer) -> None:
        survivor, other = Peer(peer.broker, table), Peer(peer.broker)
        await peer.send("T")
        await begin(peer)
        for each in (survivor, other):
            assert (await each.heartbeat(ID, "CG", T="*")).code == 0
        clients = peer.groups.clients
        if ending == "closed":
            await other.client.close()
            await eventually_async(lambda: len(clients.producer_connections("PG")) == 1)
        else:
            leaving = other if ending == "unregistered" else peer
            assert (await leaving.ask(RequestCode.UNREGISTER_CLIENT, UNREGISTER)).code == 0
            await other.client.close()
            await eventually_async(lambda: len(clients.producer_connections("PG")) == 1)
        assert await pull_without_subscription(survivor) == ResponseCode.SUCCESS
        clock.advance(60_000)
        await check(peer)
        await eventually_async(lambda: len(checked) == 1)
        assert (await survivor.ask(RequestCode.UNREGISTER_CLIENT, UNREGISTER)).code == 0
        assert clients.group("CG") is None
        assert list(clients.producer_groups()) == []
        assert await pull_without_subscription(survivor) == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await survivor.client.close()

    with_broker(story, manual(tmp_path), clock)


def test_requests_that_name_another_users_client_change_nothing(tmp_path: Path) -> None:
    queue = MessageQueue("T", "broker-a", 0)

    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.send("T")
        for name in ("alice", "bob"):
            await inner.create_user(name)
            await inner.permit(name, "Group:*", "Sub")
            await inner.permit(name, "Topic:*", "Sub", "Pub")
        alice, mallory = connect("alice"), connect("bob")
        assert (await alice.heartbeat(ID, "CG", T="*")).code == 0
        lock = LockRequest("CG", ID, [queue]).encode()

        async def locked(peer: Peer) -> list[MessageQueue]:
            response = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=lock)
            assert response.code == 0, response.remark
            return list(LockedQueues.decode(response.body).queues)

        assert await locked(alice) == [queue]
        consumer = ConsumerData("CG", subscriptions=[SubscriptionData("T", "other")])
        beat = HeartbeatData(ID, [consumer], ["PG"]).encode()
        assert (await mallory.ask(RequestCode.HEART_BEAT, body=beat)).code == 0
        assert (await mallory.ask(RequestCode.UNREGISTER_CLIENT, UNREGISTER)).code == 0
        assert (await mallory.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock)).code == 0
        assert await locked(mallory) == []
        sync = SyncGroupRequest("CG", ID, subscriptions={"T": "*"}).encode()
        refused = await mallory.ask(RayMQRequestCode.SYNC_GROUP, body=sync)
        assert (refused.code, "belongs to another user" in str(refused.remark)) == (16, True)
        clients = inner.groups.clients
        group = clients.group("CG")
        assert group is not None
        assert (len(group.connections()), group.subscriptions["T"].expression) == (1, "*")
        assert len(clients.producer_connections("PG")) == 1
        assert await locked(alice) == [queue]

    with_access(story, tmp_path)

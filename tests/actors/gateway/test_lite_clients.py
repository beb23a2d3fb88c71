"""What a gateway keeps of the clients of lite topics, and until when."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from google.protobuf.duration_pb2 import Duration

from actors.gateway.callers import Caller
from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import COMPLETE_ADD, PARTIAL_ADD, Code
from actors.gateway.receipts import Handle, Renewal
from actors.gateway.service import GatewayService
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from store.common.clock import SystemClock
from store.message.pop_records import NORMAL, Receipt
from tests.actors.broker.brokers import Peer
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.gateway.test_gateway_lite import GROUP, TOPIC, LiteClient, sent
from tests.actors.gateway.two_brokers import Gateway
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


class LiteGateway(Gateway):
    """The parts of a gateway, with brokers that have the lite group."""

    def __init__(self, clock: ClockAtRest) -> None:
        super().__init__(clock)
        self.brokers.body = orjson.dumps({"attributes": {"lite.bind.topic": "Chats"}})


NO_CALL: Any = None


def test_copy_of_a_client_is_not_for_another_user(clock: ClockAtRest) -> None:
    """Client ids are no secret."""

    async def story() -> None:
        gateway = LiteGateway(clock)
        alice, bob = Caller("c", "alice"), Caller("c", "bob")
        await gateway.lite.sync(
            NO_CALL,
            alice,
            rpc.SyncLiteSubscriptionRequest(
                action=PARTIAL_ADD, topic=TOPIC, group=GROUP, lite_topic_set=["a"]
            ),
        )
        counts = []
        for caller in (alice, bob, alice):
            counts.append(gateway.brokers.asked(RequestCode.LITE_SUBSCRIPTION_CTL))
            await gateway.lite.leave(caller._replace(user="bob") if len(counts) == 1 else caller, "agents")
        assert counts == [2, 2, 2]
        assert gateway.brokers.asked(RequestCode.LITE_SUBSCRIPTION_CTL) == 4

    asyncio.run(story())


def test_messages_of_a_client_that_ends_are_released_at_once(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = LiteGateway(clock)
        gateway.renew("agents")
        await gateway.consumers.terminate(NO_CALL, Caller("c"), rpc.NotifyClientTerminationRequest())
        [releasing] = gateway.brokers.spawned
        await releasing
        [released] = [each.ext for _, each in gateway.brokers.requests if "invisibleTime" in each.ext]
        assert released["invisibleTime"] == "1000"

    asyncio.run(story())


def test_suspended_batch_is_renewed_no_more(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway, now_ms = LiteGateway(clock), clock.wall_ms()
        receipt = Receipt(0, now_ms, 60_000, 999, NORMAL, "broker-a", 0, 0)
        batch = [Handle(receipt._replace(offset=offset), 0, "a") for offset in range(2)]
        for each in (*batch, Handle(receipt, 0, "b")):
            gateway.renewals.add(Renewal(Caller("c"), "agents", "Chats", each, now_ms * 2))
        request = rpc.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=batch[0].encode(), suspend=True, lite_topic="a",
            invisible_duration=Duration(seconds=300),
        )  # fmt: skip
        changed = await gateway.consumers.change(NO_CALL, Caller("c"), request)
        assert (changed.status.code, len(gateway.renewals)) == (Code.OK, 1)

    asyncio.run(story())


@pytest.mark.extended
@pytest.mark.parametrize("fault", ["stop", "isolate"])
def test_sessions_continue_with_the_next_leader(tmp_path: Path, fault: str) -> None:
    async def story(group: Group, one: LiteClient) -> None:
        names = [f"session-{number}" for number in range(100)]
        assert await one.sync(COMPLETE_ADD, *names) == Code.OK
        for name in names:
            await sent(one, name, "0")
        found = await one.pop()
        assert await one.ack(*found[1:]) == [Code.OK] * (len(found) - 1)
        leader, _ = await group.of_leader(lambda peer: peer.ask(RequestCode.GET_BROKER_LITE_INFO))
        if fault == "stop":
            await group.stop(leader)
        else:
            group.isolate(leader)
        left = {*names} - {each.system_properties.lite_topic for each in found[1:]}
        while left:
            popped = await one.until_popped()
            await one.ack(*popped)
            left -= {each.system_properties.lite_topic for each in popped}

    async def run() -> None:
        async with Group(tmp_path) as group:
            _, created = await group.of_leader(partial(create_lite_topic, name="Chats"))
            assert created.code == 0
            body = orjson.dumps({"groupName": "agents", "attributes": {"+lite.bind.topic": "Chats"}})
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            _, created = await group.of_leader(lambda peer: peer.ask(code, body=body))
            assert created.code == 0
            gateway = GatewayService(
                GatewaySettings(nameservers=[group.nameserver], listen_port=0), SystemClock()
            )
            await gateway.start()
            try:
                async with grpc.aio.insecure_channel(gateway.address) as channel:
                    nothing: Any = None
                    await eventually_async(group.is_leader_registered)
                    await story(group, LiteClient(nothing, channel, nothing))
            finally:
                await gateway.stop()

    asyncio.run(run())


async def create_lite_topic(peer: Peer, name: str) -> RemotingCommand:
    ext = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+message.type=LITE",
    }  # fmt: skip
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

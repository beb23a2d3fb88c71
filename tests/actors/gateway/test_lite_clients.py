"""What a gateway keeps of the clients of lite topics, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from google.protobuf.duration_pb2 import Duration

from actors.gateway.callers import Caller
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import PARTIAL_ADD, Code, Resource
from actors.gateway.receipts import Handle, Renewal
from actors.wire.codes import RequestCode
from store.message.pop_records import NORMAL, Receipt
from tests.actors.gateway.two_brokers import Gateway
from tests.conftest import ClockAtRest

TOPIC, GROUP = Resource(name="Chats"), Resource(name="agents")


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

"""Lite topics through a gateway: sends, subscriptions, receives, acks, and brokers that restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from google.protobuf.duration_pb2 import Duration

from actors.broker.service import BrokerService
from actors.gateway import lite
from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import (
    COMPLETE_ADD,
    FIFO,
    LITE,
    LITE_PUSH_CONSUMER,
    NORMAL,
    PARTIAL_ADD,
    PARTIAL_REMOVE,
    PUSH_CONSUMER,
    Address,
    ClientType,
    Code,
    Endpoints,
    IPv4,
    LiteSubscriptionAction,
    Message,
    MessageQueue,
    OffsetOption,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from actors.gateway.service import GatewayService
from actors.wire.codes import RequestCode
from store.common.clock import SystemClock
from store.message.lite_topics import lite_topic_queue
from tests.actors.broker.brokers import Peer
from tests.actors.broker.features.lite.lite_peers import create_group
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway
from tests.eventually import eventually_async

TOPIC, GROUP = Resource(name="Chats"), Resource(name="agents")
ENDPOINTS = Endpoints(scheme=IPv4, addresses=[Address(host="127.0.0.1", port=8081)])
BOUND = {"+lite.bind.topic": "Chats"}
BAD_NAMES = ("", "a b", "a$b", "a%b", "a.b", "ä", "x" * 65)


class LiteClient(GrpcClient):
    """One client of a lite group."""

    @classmethod
    def of(cls, client: GrpcClient, client_id: str) -> LiteClient:
        metadata = (("x-mq-client-id", client_id),)
        return cls(client.cluster, client.channel, client.peer, metadata)

    async def sync(
        self, action: LiteSubscriptionAction, *names: str, group: Resource = GROUP, **fields: Any
    ) -> Code:
        request = rpc.SyncLiteSubscriptionRequest(
            action=action, topic=fields.pop("topic", TOPIC), group=group, lite_topic_set=names, **fields
        )
        return (await self.call(request)).status.code

    async def pop(self, wait_s: int = 0, broker: str = "broker-a", **fields: Any) -> list[Message]:
        request = rpc.ReceiveMessageRequest(
            group=GROUP, message_queue=MessageQueue(topic=TOPIC, id=-1), batch_size=32,
            long_polling_timeout=Duration(seconds=wait_s),
            **fields or {"auto_renew": True},
        )  # fmt: skip
        request.message_queue.broker.name = broker
        found = [each async for each in self.receive(request)]
        assert found[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), found[0].status
        return [each.message for each in found[1:-1]]

    async def until_popped(self, **fields: Any) -> list[Message]:
        """Receive as SDKs do, which repeat a call that fails."""

        async def popped() -> list[Message]:
            try:
                return await self.pop(wait_s=1, **fields)
            except AssertionError:
                return []

        return await eventually_async(popped)

    async def ack(self, *messages: Message, lite_topic: str = "") -> list[Code]:
        entries = [
            rpc.AckMessageEntry(
                message_id=each.system_properties.message_id,
                receipt_handle=each.system_properties.receipt_handle,
                lite_topic=lite_topic or None,
            )
            for each in messages
        ]
        acked = await self.call(rpc.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))
        return [each.status.code for each in acked.entries]

    async def change(self, popped: Message, seconds: int, **fields: Any) -> Code:
        request = rpc.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=popped.system_properties.receipt_handle,
            invisible_duration=Duration(seconds=seconds), **fields,
        )  # fmt: skip
        return (await self.call(request)).status.code

    async def open_stream(
        self, kind: ClientType = LITE_PUSH_CONSUMER, topic: Resource = TOPIC, group: Resource = GROUP
    ) -> tuple[Any, rpc.TelemetryCommand]:
        """Return the Telemetry stream of a consumer and the response to its settings."""
        stream = self.telemetry()
        subscription = Subscription(group=group, subscriptions=[SubscriptionEntry(topic=topic)])
        settings = Settings(client_type=kind, subscription=subscription)
        await stream.write(rpc.TelemetryCommand(settings=settings))
        return stream, await stream.read()


Story = Callable[[LiteClient], Awaitable[None]]


async def sent(client: GrpcClient, name: str, *bodies: str) -> None:
    """Send as SDKs do, which repeat a call that fails."""
    for body in bodies:
        given = message("Chats", body.encode(), lite_topic=name, message_type=LITE)
        if (await client.send(given)).status.code != Code.OK:
            assert (await client.send(given)).status.code == Code.OK


def with_lite(root: Path, story: Story, brokers: int = 1, **attributes: str) -> None:
    """Run a story with the topic Chats and its lite group; `attributes` are those of the group."""

    async def prepared(client: GrpcClient) -> None:
        for broker in client.cluster.brokers:
            peer = Peer(broker)
            found = GrpcClient(client.cluster, client.channel, peer)
            await found.create_topic("Chats", "LITE", queues=4)
            await create_group(peer, "agents", "Chats", **attributes)
            await peer.client.close()
        await story(LiteClient.of(client, "one"))

    with_gateway(root, prepared, brokers=brokers)


def bodies(messages: list[Message]) -> list[bytes]:
    return [each.body for each in messages]


def test_lite_messages_are_received_in_order_and_acked(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        assert await one.sync(PARTIAL_ADD, "a") == Code.OK
        waiting = asyncio.create_task(one.pop(wait_s=20))
        await one.peer.until_held(1)
        await sent(one, "b", "b0")
        await sent(one, "a", "a0")
        [first] = await waiting
        system = first.system_properties
        assert (first.body, system.lite_topic, system.message_type) == (b"a0", "a", LITE)
        assert (system.queue_offset, system.delivery_attempt) == (0, 1)
        await sent(one, "a", "a1", "a2")
        assert await one.pop() == []  # a0 is in flight
        assert await one.ack(first, lite_topic="b") == [Code.INVALID_RECEIPT_HANDLE]
        assert await one.ack(first, lite_topic="a") == [Code.OK]
        rest = await one.pop()
        assert bodies(rest) == [b"a1", b"a2"]
        assert await one.ack(*rest) == [Code.OK, Code.OK]  # the handle says the lite topic
        assert await one.sync(COMPLETE_ADD, "b") == Code.OK
        assert bodies(await one.pop()) == [b"b0"]
        assert await one.sync(PARTIAL_REMOVE, "b") == Code.OK
        await sent(one, "b", "b1")
        assert await one.pop() == []

    with_lite(tmp_path, story)


def test_failed_lite_message_returns_although_its_lite_topic_is_not_named(tmp_path: Path) -> None:
    """Java's SDK 5.2.0 omits it in a group that is not FIFO."""

    async def story(one: LiteClient) -> None:
        await sent(one, "a", "a0", "a1", "a2")
        await one.sync(PARTIAL_ADD, "a")
        first, second, _ = await one.pop()
        assert await one.ack(second) == [Code.OK]
        assert await one.change(first, 0) == Code.OK
        assert await one.pop() == []  # a2 is in flight
        assert await one.change(first, 0, lite_topic="b") == Code.INVALID_RECEIPT_HANDLE
        assert await one.change(first, 0, lite_topic="a", suspend=True) == Code.OK
        again = await one.until_popped()
        attempts = [each.system_properties.delivery_attempt for each in again]
        assert (bodies(again)[0], attempts[0]) == (b"a0", 1)  # a suspended delivery does not count

    with_lite(tmp_path, story)


def test_lite_topic_lives_on_after_a_dead_letter(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        await sent(one, "a", "poison", "a1")
        await one.sync(PARTIAL_ADD, "a")
        first, second = await one.pop()
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=first.system_properties.receipt_handle,
            message_id="01ABC", lite_topic="a",
        )  # fmt: skip
        assert (await one.call(request)).status.code == Code.OK
        [dead] = await one.stored("%DLQ%agents", 1)
        assert (dead.body, dead.properties["__LITE_TOPIC"]) == (b"poison", "a")
        assert await one.ack(second) == [Code.OK]
        await sent(one, "a", "a2")
        assert bodies(await one.until_popped()) == [b"a2"]

    with_lite(tmp_path, story)


def test_lite_requests_are_checked(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        await create_group(one.peer, "other", "Plain")
        for name in BAD_NAMES:
            answer = await one.send(message("Chats", lite_topic=name, message_type=LITE))
            assert answer.status.code == Code.ILLEGAL_LITE_TOPIC, name
            for action in (PARTIAL_ADD, COMPLETE_ADD):
                assert await one.sync(action, "ok", name) == Code.ILLEGAL_LITE_TOPIC, name
        for topic, system in (
            ("Chats", {}), ("Chats", {"message_type": LITE}), ("Chats", {"message_group": "g"}),
            ("Chats", {"lite_topic": "a", "message_type": NORMAL}),
            ("Chats", {"lite_topic": "a", "message_group": "g", "message_type": FIFO}),
            ("Normal", {"lite_topic": "a"}),
        ):  # fmt: skip
            await one.create_topic("Normal", "NORMAL")
            answer = await one.send(message(topic, **system))
            assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, (topic, system)
        assert (await one.send(message("Plain", lite_topic="a"))).status.code == Code.BAD_REQUEST
        illegal_group = Code.ILLEGAL_CONSUMER_GROUP
        assert await one.sync(PARTIAL_ADD, "a", group=Resource(name="plain")) == illegal_group
        assert await one.sync(PARTIAL_ADD, "a", group=Resource(name="other")) == Code.ILLEGAL_TOPIC
        assert await one.sync(7, "a") == Code.BAD_REQUEST  # type: ignore[arg-type]
        assert await one.sync(PARTIAL_ADD, "a", offset_option=OffsetOption()) == Code.BAD_REQUEST
        many = [f"n{number}" for number in range(304)]
        assert await one.sync(COMPLETE_ADD, *many) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        route = await one.call(rpc.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS))
        assert {tuple(each.accept_message_types) for each in route.message_queues} == {(LITE,)}
        fifo = {"groupName": "fifo", "consumeMessageOrderly": True, "attributes": BOUND}
        await one.peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=orjson.dumps(fifo))
        found = await one.call(rpc.QueryAssignmentRequest(topic=TOPIC, group=Resource(name="fifo")))
        assert [each.message_queue.id for each in found.assignments] == [-1]

    with_lite(tmp_path, story, sub_client_quota="3")


def test_settings_of_lite_clients_have_their_limits(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        stream, answer = await one.open_stream()
        found = answer.settings.subscription
        assert answer.status.code == Code.OK
        assert (found.lite_subscription_quota, found.max_lite_topic_size) == (3, 64)
        stream.cancel()
        await create_group(one.peer, "unlimited", "Chats", sub_client_quota="-1")
        stream, answer = await one.open_stream(group=Resource(name="unlimited"))
        assert answer.settings.subscription.lite_subscription_quota == (1 << 31) - 1
        stream.cancel()
        for kind, topic, group, code in (
            (LITE_PUSH_CONSUMER, TOPIC, Resource(name="plain"), Code.ILLEGAL_CONSUMER_GROUP),
            (PUSH_CONSUMER, TOPIC, GROUP, Code.ILLEGAL_CONSUMER_GROUP),
            (LITE_PUSH_CONSUMER, Resource(name="Plain"), GROUP, Code.ILLEGAL_TOPIC),
        ):
            stream, answer = await one.open_stream(kind, topic, group)
            assert answer.status.code == code, answer
            assert answer.settings.subscription.lite_subscription_quota > 0
            stream.cancel()

    with_lite(tmp_path, story, sub_client_quota="3")


def test_client_is_notified_on_its_stream_that_another_one_has_taken_over(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        two = LiteClient.of(one, "two")
        stream, _ = await one.open_stream()
        await one.sync(PARTIAL_ADD, "a", "b")
        await two.sync(PARTIAL_ADD, "a")
        command = await stream.read()
        assert command.notify_unsubscribe_lite_command.lite_topic == "a"
        await restarted(one)
        await eventually_async(lambda: is_served(one))  # and subscribed again
        await sent(one, "a", "a0")
        assert bodies(await two.until_popped()) == [b"a0"]
        assert await one.pop() == []
        end = rpc.NotifyClientTerminationRequest(group=GROUP)
        assert (await two.call(end)).status.code == Code.OK
        assert await one.sync(COMPLETE_ADD, "a") == Code.OK
        assert bodies(await one.until_popped()) == [b"a0"]  # which the other one has not acked
        stream.cancel()

    with_lite(tmp_path, story, sub_model="Exclusive")


@pytest.mark.parametrize(
    ("option", "received"),
    [
        ({"policy": OffsetOption.MIN}, [b"0", b"1", b"2", b"3"]),
        ({"policy": OffsetOption.MAX}, []),
        ({"offset": 3}, [b"3"]),
        ({"tail_n": 2}, [b"2", b"3"]),
        ({"timestamp": 1}, [b"0", b"1", b"2", b"3"]),
    ],
)
def test_offset_option_says_where_a_subscription_begins(
    tmp_path: Path, option: dict[str, Any], received: list[bytes]
) -> None:
    async def story(one: LiteClient) -> None:
        await sent(one, "a", *"0123")
        assert await one.sync(PARTIAL_ADD, "a", offset_option=OffsetOption(**option)) == Code.OK
        assert bodies(await one.pop()) == received

    with_lite(tmp_path, story)


async def is_served(client: LiteClient) -> bool:
    try:
        await client.pop()
    except AssertionError:
        return False
    return True


async def restarted(client: GrpcClient, number: int = 0) -> None:
    """Restart a broker, at another address, as after a change of leader."""
    cluster = client.cluster
    await cluster.brokers[number].stop()
    cluster.brokers[number] = broker = BrokerService(cluster.brokers[number].settings, SystemClock())
    await cluster.add(broker)
    await client.peer.client.close()
    client.peer = Peer(broker)


@pytest.mark.parametrize("attributes", [{}, {"sub_model": "Exclusive"}, {"sub_wildcard": "true"}])
def test_gateway_subscribes_again_after_a_restart_of_the_broker(
    tmp_path: Path, attributes: dict[str, str]
) -> None:
    async def story(one: LiteClient) -> None:
        is_wildcard = "sub_wildcard" in attributes
        if not is_wildcard:
            await one.sync(PARTIAL_ADD, "a", "b", "gone")
            await one.sync(PARTIAL_REMOVE, "gone")
        await sent(one, "a", "a0")
        await one.ack(*await one.pop())
        await restarted(one)
        await sent(one, "a", "a1")
        popped = await one.until_popped()
        assert bodies(popped) == [b"a1"]
        assert await one.ack(*popped) == [Code.OK]
        await sent(one, "gone", "x")
        assert bodies(await one.pop()) == ([b"x"] if is_wildcard else [])

    with_lite(tmp_path, story, **attributes)


def test_gateway_keeps_no_copy_of_a_refused_subscription(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        await one.sync(PARTIAL_ADD, "a")
        many = [f"n{number}" for number in range(400)]
        assert await one.sync(PARTIAL_ADD, *many) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        await restarted(one)
        assert await one.sync(PARTIAL_ADD, "b") != Code.OK  # no broker serves at the known address
        assert await one.sync(PARTIAL_ADD, "b") == Code.OK
        await restarted(one)
        await sent(one, "a", "a0")
        assert bodies(await one.until_popped()) == [b"a0"]

    with_lite(tmp_path, story, sub_client_quota="3")


def test_copies_of_subscriptions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite, "SUBSCRIBED", replace(lite.SUBSCRIBED, limit=4))

    async def story(one: LiteClient) -> None:
        two = LiteClient.of(one, "two")
        await one.sync(PARTIAL_ADD, "a", "b")
        await two.sync(PARTIAL_ADD, "c", "d")  # with it, there is no room for the first copy
        await restarted(two)
        one.peer = two.peer
        await sent(one, "a", "a0")
        await sent(one, "c", "c0")
        assert bodies(await two.until_popped()) == [b"c0"]
        assert await one.pop() == []
        await one.sync(COMPLETE_ADD, "a", "b")  # the client repeats it
        assert bodies(await one.pop()) == [b"a0"]

    with_lite(tmp_path, story)


def test_client_continues_at_another_gateway(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        await one.sync(PARTIAL_ADD, "a")
        await sent(one, "a", "a0", "a1")
        first, second = await one.pop()
        settings = GatewaySettings(nameservers=[one.cluster.nameserver_address], listen_port=0)
        gateway = GatewayService(settings, SystemClock())
        await gateway.start()
        try:
            async with grpc.aio.insecure_channel(gateway.address) as channel:
                moved = LiteClient(one.cluster, channel, one.peer, (("x-mq-client-id", "one"),))
                assert await moved.ack(first, second) == [Code.OK, Code.OK]
                await sent(moved, "a", "a2")
                assert bodies(await moved.until_popped()) == [b"a2"]
        finally:
            await gateway.stop()

    with_lite(tmp_path, story)


def test_each_lite_topic_is_on_one_of_several_brokers(tmp_path: Path) -> None:
    async def story(one: LiteClient) -> None:
        names = [f"session-{number}" for number in range(8)]
        places: dict[str, list[str]] = {"broker-a": [], "broker-b": []}
        for name in names:
            places["broker-a" if lite_topic_queue(name, 8) < 4 else "broker-b"].append(name)
        assert all(places.values())
        assert await one.sync(COMPLETE_ADD, *names) == Code.OK
        for name in names:
            await sent(one, name, name)
        for broker, expected in places.items():
            found = await one.pop(broker=broker)
            assert sorted(bodies(found)) == sorted(each.encode() for each in expected)
            await one.ack(*found)
        await one.cluster.brokers[1].stop()
        on_a, on_b = places["broker-a"][0], places["broker-b"].pop()
        option = OffsetOption(policy=OffsetOption.MIN)
        assert await one.sync(PARTIAL_ADD, on_a, offset_option=option) != Code.OK  # it would be lost
        await restarted(one, 1)
        await one.call(rpc.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS))
        await one.cluster.brokers[1].stop()
        assert bodies(await one.pop()) == [on_a.encode()]
        assert await one.sync(PARTIAL_REMOVE, on_b) == Code.OK  # broker-b gets it when it is back
        await restarted(one, 1)
        for name in (on_b, places["broker-b"][0]):
            await sent(one, name, "again")
        assert bodies(await one.until_popped(broker="broker-b")) == [b"again"]

    with_lite(tmp_path, story, brokers=2)

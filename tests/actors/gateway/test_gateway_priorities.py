"""Messages with a priority through a gateway: types, stored properties and received messages."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import (
    FIFO,
    NORMAL,
    PRIORITY,
    SIMPLE_CONSUMER,
    Address,
    Code,
    Endpoints,
    FilterExpression,
    IPv4,
    MessageQueue,
    Resource,
)
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway

ENDPOINTS = Endpoints(scheme=IPv4, addresses=[Address(host="127.0.0.1", port=8081)])
TOPIC, GROUP = Resource(name="Urgent"), Resource(name="CG")


async def sent(client: GrpcClient, topic: str = "Urgent", body: bytes = b"x", **system: object) -> Code:
    return (await client.send(message(topic, body, **system))).status.code


def test_gateway_sends_and_receives_messages_by_priority(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Urgent", "PRIORITY", queues=4)
        heartbeat = rpc.HeartbeatRequest(group=GROUP, client_type=SIMPLE_CONSUMER)
        assert (await client.call(heartbeat)).status.code == Code.OK
        for priority in (0, 2, 90):
            assert (
                await sent(client, body=str(priority).encode(), priority=priority, message_type=PRIORITY)
                == Code.OK
            )
        assert [each.properties["_SYS_MSG_PRIORITY_"] for each in await client.stored("Urgent", 4)] == [
            "0",
            "2",
            "90",
        ]
        route = await client.call(rpc.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS))
        assert {tuple(each.accept_message_types) for each in route.message_queues} == {(PRIORITY,)}
        received = client.receive(
            rpc.ReceiveMessageRequest(
                group=GROUP, message_queue=MessageQueue(topic=TOPIC, id=-1), batch_size=5,
                filter_expression=FilterExpression(expression="*"),
                invisible_duration=Duration(seconds=60), long_polling_timeout=Duration(seconds=5),
            )
        )  # fmt: skip
        found = [each.message.system_properties async for each in received if each.HasField("message")]
        assert [each.priority for each in found] == [90, 2, 0]
        assert {each.message_type for each in found} == {PRIORITY}

    with_gateway(tmp_path, story)


def test_gateway_checks_the_type_of_messages_with_a_priority(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Urgent", "PRIORITY")
        await client.create_topic("Normal", "NORMAL")
        conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert await sent(client) == conflict
        assert await sent(client, "Normal", priority=1) == conflict
        assert await sent(client, priority=1, message_type=NORMAL) == conflict
        assert await sent(client, priority=1, message_group="g", message_type=FIFO) == conflict
        assert await sent(client, message_type=PRIORITY) == conflict
        assert await sent(client, priority=-1) == Code.BAD_REQUEST
        assert await client.stored("Urgent") == await client.stored("Normal") == []
        assert await sent(client, "Plain", priority=1) == Code.OK  # it accepts all types

    with_gateway(tmp_path, story)

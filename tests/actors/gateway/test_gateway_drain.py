"""A gateway that stops: its clients finish open calls and continue at another gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration

from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code, Resource
from actors.gateway.service import GatewayService
from store.common.clock import SystemClock
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway
from tests.eventually import eventually_async


def receive(long_polling_s: int) -> rpc.ReceiveMessageRequest:
    request = rpc.ReceiveMessageRequest(
        group=Resource(name="workers"),
        batch_size=1,
        invisible_duration=Duration(seconds=30),
        long_polling_timeout=Duration(seconds=long_polling_s),
    )
    request.message_queue.topic.name, request.message_queue.broker.name = "Plain", "broker-a"
    return request


async def started(client: GrpcClient) -> GatewayService:
    settings = GatewaySettings(
        nameservers=[client.cluster.nameserver_address], listen_port=0, drain_timeout_ms=60_000
    )
    gateway = GatewayService(settings, SystemClock())
    await gateway.start()
    return gateway


def test_open_receive_ends_and_new_calls_go_to_another_gateway(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Other")
        first, second = await started(client), await started(client)
        target = f"ipv4:{first.address},{second.address}"
        async with grpc.aio.insecure_channel(target) as channel:
            both = GrpcClient(client.cluster, channel, client.peer)
            [status, _] = [each async for each in both.receive(receive(0))]  # the group begins here
            assert status.status.code == Code.MESSAGE_NOT_FOUND
            stream = both.receive(receive(20))
            await client.peer.until_held(1)
            stopping = asyncio.create_task(first.stop())

            async def is_at_second() -> bool:
                assert (await both.send(message("Other"))).status.code == Code.OK
                return len(second.server.hub.connections) == 1

            # After GOAWAY the channel connects to the second gateway; its stream stays open at the first one.
            await eventually_async(is_at_second)
            assert len(first.server.hub.connections) == 1
            assert (await both.send(message(body=b"after GOAWAY"))).status.code == Code.OK
            received = [each async for each in stream]
            assert [each.message.body for each in received[1:-1]] == [b"after GOAWAY"]
            await stopping
            assert len(first.server.hub.connections) == 0
        await second.stop()

    with_gateway(tmp_path, story)

"""A cluster with a gateway in this process, and a gRPC client without RocketMQ's SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Message, Resource
from actors.gateway.service import SERVICE
from actors.wire.codes import RequestCode
from cluster.standalone import StandaloneCluster, StandaloneSettings
from store.common.clock import SystemClock
from store.message.message import MessageExt
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import SMALL_STORE, Peer
from tests.actors.broker.core.auth.access_peers import INNER, SigningPeer, inner_file
from tests.eventually import eventually_async

CLIENT_ID = (("x-mq-client-id", "client@test"),)


class GrpcClient:
    """The rpcs of one client."""

    def __init__(
        self, cluster: StandaloneCluster, channel: grpc.aio.Channel, peer: Peer, metadata: Any = CLIENT_ID
    ) -> None:
        self.cluster = cluster
        self.peer = peer
        self.channel = channel
        self._metadata = metadata

    async def create_topic(self, name: str, message_type: str = "", queues: int = 2, perm: int = 6) -> None:
        """Create a topic with RocketMQ's attribute `message.type`."""
        ext = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": str(perm), "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
            "attributes": f"+message.type={message_type}" if message_type else "",
        }  # fmt: skip
        response = await self.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        assert response.code == 0, response.remark

    async def stored(self, topic: str, queues: int = 2) -> list[MessageExt]:
        """Return the messages of a topic."""
        found = []
        for queue_id in range(queues):
            found += await self.peer.messages(topic, queue_id=queue_id)
        return found

    async def call(self, request: Any, metadata: Any = None) -> Any:
        name = type(request).__name__.removesuffix("Request")
        response = getattr(rpc, f"{name}Response")
        call = self.channel.unary_unary(
            SERVICE + name, request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )  # fmt: skip
        return await call(request, metadata=self._metadata if metadata is None else metadata)

    def receive(self, request: rpc.ReceiveMessageRequest) -> Any:
        return self.channel.unary_stream(
            f"{SERVICE}ReceiveMessage", rpc.ReceiveMessageRequest.SerializeToString,
            rpc.ReceiveMessageResponse.FromString,
        )(request, metadata=self._metadata)  # fmt: skip

    def telemetry(self) -> Any:
        return self.channel.stream_stream(
            f"{SERVICE}Telemetry", rpc.TelemetryCommand.SerializeToString, rpc.TelemetryCommand.FromString
        )(metadata=self._metadata)

    async def send(self, *messages: Message) -> rpc.SendMessageResponse:
        found: rpc.SendMessageResponse = await self.call(rpc.SendMessageRequest(messages=messages))
        return found


def message(topic: str = "Plain", body: bytes = b"body", **system: Any) -> Message:
    """Return a message with an id; `system` are further system properties."""
    system = {"message_id": "01ABC", **system}
    return Message(topic=Resource(name=topic), body=body, system_properties=system)


async def until_acked(client: GrpcClient, group: str, topic: str = "Plain", queues: int = 2) -> None:
    """Wait until the group has committed all messages of a topic."""

    async def is_committed() -> bool:
        committed = 0
        for queue_id in range(queues):
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
            response = await client.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
            committed += int(response.ext.get("offset", 0))
        return committed == len(await client.stored(topic, queues))

    await eventually_async(is_committed)


def with_gateway(
    root: Path,
    story: Callable[[GrpcClient], Awaitable[None]],
    broker: dict[str, str] | None = None,
    *,
    has_users: bool = False,
    brokers: int = 1,
) -> None:
    """Run a story with a cluster and the client of its gateway; with users, its `peer` is the inner user."""

    async def run() -> None:
        store = StoreSettings.model_validate({**SMALL_STORE, "flush": "async"})
        settings = StandaloneSettings(
            root,
            store=store,
            with_rebalancer=False,
            gateway_port=0,
            brokers=brokers,
            broker=broker or {},
            inner_credentials_file=inner_file(root) if has_users else None,
        )
        cluster = StandaloneCluster(settings, SystemClock())
        await cluster.start()
        try:
            async with grpc.aio.insecure_channel(cluster.gateway_address) as channel:
                peer = SigningPeer(cluster.brokers[0], INNER) if has_users else Peer(cluster.brokers[0])
                client = GrpcClient(cluster, channel, peer)
                await client.create_topic("Plain")
                await story(client)
                await client.peer.client.close()
        finally:
            await cluster.stop()

    asyncio.run(run())

"""Gateway and broker killed under gRPC load: what was acknowledged arrives, and what was acked stays away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code, Resource
from actors.gateway.service import SERVICE
from cluster.client import Admin
from store.message.group_config import SubscriptionGroupConfig
from tests.actors.gateway.gateways import CLIENT_ID, message
from tests.eventually import eventually_async
from tests.faults.gateway_process import GatewayProcess
from tests.faults.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.faults, pytest.mark.extended]

TOPIC, GROUP = Resource(name="load"), Resource(name="workers")
OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
CALL_S = 20
STEP = 200
"""Messages that are acknowledged before, between and after the faults."""


class Workers:
    """Senders and receivers over one channel, and what they know."""

    def __init__(self, channel: grpc.aio.Channel, message_group: str = "") -> None:
        self._channel = channel
        self._system = {"message_group": message_group} if message_group else {}
        self._next = 0
        self.acknowledged: set[int] = set()
        self.received: dict[int, None] = {}
        """The messages in the order of their first deliveries."""
        self.acked: set[int] = set()
        self.again: set[int] = set()
        """Messages that a later call has received although their ack was confirmed."""

    async def call(self, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        method = self._channel.unary_unary(
            SERVICE + name, type(request).SerializeToString, getattr(rpc, f"{name}Response").FromString
        )
        return await method(request, metadata=CLIENT_ID, timeout=CALL_S)

    async def send(self) -> None:
        while True:
            self._next += 1
            number = self._next
            sent = message("load", b"%d" % number, message_id=f"id{number}", **self._system)
            request = rpc.SendMessageRequest(messages=[sent])
            try:
                response = await self.call(request)
            except grpc.aio.AioRpcError:
                continue  # it may be stored: it is not counted on
            if response.status.code == Code.OK:
                self.acknowledged.add(number)

    async def receive(self) -> None:
        """Receive and ack until the task is cancelled."""
        while True:
            acked = set(self.acked)
            try:
                messages = await self.receive_once()
                numbers = [int(each.body) for each in messages]
                self.received |= dict.fromkeys(numbers)
                self.again |= acked.intersection(numbers)
                for each in messages:
                    await self._ack(each)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0)

    async def receive_once(self) -> list[Any]:
        """Return the messages of one call."""
        request = rpc.ReceiveMessageRequest(
            group=GROUP, batch_size=16, invisible_duration=Duration(seconds=10),
            long_polling_timeout=Duration(seconds=1),
        )  # fmt: skip
        request.message_queue.topic.CopyFrom(TOPIC)
        method = self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage", rpc.ReceiveMessageRequest.SerializeToString,
            rpc.ReceiveMessageResponse.FromString,
        )  # fmt: skip
        found = [each async for each in method(request, metadata=CLIENT_ID, timeout=CALL_S)]
        return [each.message for each in found if each.HasField("message")]

    async def _ack(self, received: Any) -> None:
        handle = received.system_properties.receipt_handle
        entry = rpc.AckMessageEntry(receipt_handle=handle, message_id=received.system_properties.message_id)
        response = await self.call(rpc.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry]))
        if response.status.code == Code.OK:
            self.acked.add(int(received.body))

    async def progress(self) -> None:
        """Wait until further messages were acknowledged and acked."""
        sent, acked = len(self.acknowledged) + STEP, len(self.acked) + STEP
        await eventually_async(lambda: len(self.acknowledged) >= sent and len(self.acked) >= acked)


def run(root: Path, *faults: str, message_group: str = "") -> Workers:
    """Kill and restart the named processes one after another under load; return what the workers know.

    With a message group there is one sender, and the consumer group is a FIFO group.
    """
    broker = StandaloneProcess(root / "stores")
    gateway = GatewayProcess(broker.nameserver)

    def restart(fault: str) -> None:
        if "broker" in fault:
            broker.kill()
        if "gateway" in fault:
            gateway.kill()
        if "broker" in fault:
            broker.start()
        if "gateway" in fault:
            gateway.start()

    async def story() -> Workers:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}", OPTIONS) as channel:
            workers = Workers(channel, message_group)
            assert await workers.receive_once() == []  # a new group begins at the end
            receivers = [asyncio.create_task(workers.receive()) for _ in range(3)]
            senders = [asyncio.create_task(workers.send()) for _ in range(1 if message_group else 3)]
            await workers.progress()
            for fault in faults:
                await asyncio.to_thread(restart, fault)
                await workers.progress()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
            await eventually_async(
                lambda: workers.acknowledged <= workers.received.keys(),
                "every acknowledged message",
            )
            for receiver in receivers:
                receiver.cancel()
            await asyncio.gather(*receivers, return_exceptions=True)
        return workers

    try:
        with Admin(broker.nameserver) as admin:
            admin.create_topic("load", queues=4)
            if message_group:
                admin.put_group(SubscriptionGroupConfig("workers", consume_message_orderly=True))
        return asyncio.run(story())
    finally:
        gateway.kill()
        broker.stop()


def test_killed_gateway_loses_nothing_and_no_acked_message_returns(tmp_path: Path) -> None:
    workers = run(tmp_path, "gateway", "gateway")
    assert not workers.again


@pytest.mark.parametrize("fault", ["broker", "broker and gateway"])
def test_killed_broker_loses_no_acknowledged_message(tmp_path: Path, fault: str) -> None:
    """Acks of the last seconds are lost with the broker's memory, as in RocketMQ: they may come again."""
    workers = run(tmp_path, fault)
    assert workers.acknowledged <= workers.received.keys()


def test_killed_broker_and_gateway_keep_the_order_of_a_message_group(tmp_path: Path) -> None:
    workers = run(tmp_path, "gateway", "broker", "broker and gateway", message_group="order-7")
    assert list(workers.received) == sorted(workers.received)

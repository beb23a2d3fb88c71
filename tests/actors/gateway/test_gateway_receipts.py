"""Receipts that are used twice, too late, by another group or topic, or that are forged.

The statuses are those of RocketMQ's proxy 5.3.3, with two exceptions: it responds with INTERNAL_SERVER_ERROR
if queue or offset do not exist, and a change with an acked or foreign receipt delivers the message once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code, Message, Resource, Status
from actors.gateway.receipts import Handle
from tests.actors.gateway.gateways import GrpcClient, message, until_acked, with_gateway
from tests.actors.gateway.test_gateway_consumers import GROUP, TOPIC, begin, receive

OTHER = Resource(name="Other")
MINUTE = Duration(seconds=60)
Use = Callable[..., Awaitable[Status]]


async def ack(client: GrpcClient, handle: str, group: Resource = GROUP, topic: Resource = TOPIC) -> Status:
    entry = rpc.AckMessageEntry(message_id="01ABC", receipt_handle=handle)
    response = await client.call(rpc.AckMessageRequest(group=group, topic=topic, entries=[entry]))
    [found] = (each.status for each in response.entries)
    assert (response.status.code, response.status.message) == (found.code, Code.Name(found.code))
    return Status(code=found.code, message=found.message)


async def change(client: GrpcClient, handle: str, group: Resource = GROUP, topic: Resource = TOPIC) -> Status:
    request = rpc.ChangeInvisibleDurationRequest(
        group=group, topic=topic, receipt_handle=handle, invisible_duration=MINUTE, message_id="01ABC"
    )
    found: Status = (await client.call(request)).status
    return found


async def bury(client: GrpcClient, handle: str, group: Resource = GROUP, topic: Resource = TOPIC) -> Status:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        group=group, topic=topic, receipt_handle=handle, message_id="01ABC", delivery_attempt=1,
        max_delivery_attempts=1,
    )  # fmt: skip
    found: Status = (await client.call(request)).status
    return found


async def received(client: GrpcClient) -> Handle:
    """Send a message, and return the handle of its first delivery."""
    await client.send(message())
    _, [first] = await receive(client)
    return Handle.decode(first.system_properties.receipt_handle)


async def shortened(client: GrpcClient, handle: Handle) -> str:
    """Make a message visible again at once; return the handle, which has expired."""
    request = rpc.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle.encode(), invisible_duration=Duration(nanos=1_000_000)
    )
    changed = await client.call(request)
    assert changed.status.code == Code.OK
    return str(changed.receipt_handle)


async def returned(client: GrpcClient) -> Message:
    """Return the message of the next delivery."""
    _, [again] = await receive(client, long_polling_timeout=Duration(seconds=20))
    return again


def forged(handle: Handle) -> Mapping[str, Handle]:
    """Return handles of messages that do not exist, or that no member has received."""
    receipt = handle.receipt
    return {
        "queue": handle._replace(receipt=receipt._replace(queue_id=9)),
        "offset": handle._replace(receipt=receipt._replace(offset=10**9)),
        "broker": handle._replace(receipt=receipt._replace(broker_name="broker-z")),
        "retry topic": handle._replace(receipt=receipt._replace(kind="1")),
    }


def test_second_use_of_a_receipt_has_no_effect(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        handle = (await received(client)).encode()
        assert [(await ack(client, handle)).code for _ in range(2)] == [Code.OK, Code.OK]
        assert (await change(client, handle)).code == Code.INVALID_RECEIPT_HANDLE
        handle = (await received(client)).encode()
        assert [(await bury(client, handle)).code for _ in range(2)] == [Code.OK, Code.OK]
        await until_acked(client, GROUP.name)
        assert (await receive(client))[1] == []

    with_gateway(tmp_path, story)


def test_expired_receipt_is_invalid_and_the_message_returns(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        first = await received(client)
        expired = await shortened(client, first)
        again = (await returned(client)).system_properties
        assert again.delivery_attempt == 2
        for use in (ack, change):
            status = await use(client, expired)
            assert (status.code, "expired" in status.message) == (Code.INVALID_RECEIPT_HANDLE, True)
        assert (await ack(client, first.encode())).code == Code.OK  # no effect: it was changed
        assert (await change(client, again.receipt_handle)).code == Code.OK  # so it is still claimed

    with_gateway(tmp_path, story)


@pytest.mark.parametrize("use", [ack, change, bury])
def test_foreign_and_forged_receipts_leave_the_message_claimed(tmp_path: Path, use: Use) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        await client.create_topic(OTHER.name)
        handle = await received(client)
        text = handle.encode()
        found: dict[str, Any] = {
            "group": (await use(client, text, group=OTHER)).code,
            "topic": (await use(client, text, topic=OTHER)).code,
            "no topic": (await use(client, text, topic=Resource(name="None"))).code,
        }
        for name, each in forged(handle).items():
            found[name] = (await use(client, each.encode())).code
        assert found == {
            # A broker cannot tell a receipt of another group or topic from one that was acked before.
            "group": Code.INVALID_RECEIPT_HANDLE if use is change else Code.OK,
            "topic": Code.INVALID_RECEIPT_HANDLE if use is change else Code.OK,
            "no topic": Code.TOPIC_NOT_FOUND,
            **dict.fromkeys(forged(handle), Code.INVALID_RECEIPT_HANDLE),
        }
        await shortened(client, handle)
        again = await returned(client)  # it was not acked by any of these
        assert again.body == b"body"
        assert (await ack(client, again.system_properties.receipt_handle)).code == Code.OK
        await until_acked(client, GROUP.name, f"%RETRY%{GROUP.name}_{TOPIC.name}", queues=1)

    with_gateway(tmp_path, story)

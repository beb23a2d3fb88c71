"""Requests of RocketMQ 5.5 that a gateway does not serve, as raw protobuf."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from actors.gateway.service import SERVICE
from tests.actors.gateway.gateways import CLIENT_ID, GrpcClient, with_gateway


def field(number: int, value: bytes | int) -> bytes:
    """Return one field; its tag, size and value are less than 128 or of two bytes."""
    kind = 0 if isinstance(value, int) else 2
    tag = number << 3 | kind
    encoded = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return encoded + (bytes([value]) if isinstance(value, int) else bytes([len(value)]) + value)


NAME = field(2, b"Plain")  # of a Resource
GROUP, TOPIC, LITE_TOPIC = field(1, NAME), field(2, NAME), b"orders/7"


def send(system: bytes) -> tuple[str, bytes]:
    properties = field(3, b"01ABC") + system
    return "SendMessage", field(1, field(1, NAME) + field(3, properties) + field(4, b"body"))


REQUESTS = {
    "lite message": (send(field(21, LITE_TOPIC)), "orders/7"),
    "type LITE": (send(field(6, 5)), "LITE"),
    "lite ack": (("AckMessage", GROUP + TOPIC + field(3, field(3, LITE_TOPIC))), "orders/7"),
    "lite change": (("ChangeInvisibleDuration", GROUP + TOPIC + field(6, LITE_TOPIC)), "orders/7"),
    "lite dead letter": (
        ("ForwardMessageToDeadLetterQueue", GROUP + TOPIC + field(7, LITE_TOPIC)), "orders/7",
    ),
    "lite subscription": (
        ("SyncLiteSubscription", TOPIC + field(3, NAME) + field(4, LITE_TOPIC)), "SyncLiteSubscription",
    ),
}  # fmt: skip


def test_lite_requests_are_unimplemented(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        for name, ((method, request), cause) in REQUESTS.items():
            call = client.channel.unary_unary(SERVICE + method)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request, metadata=CLIENT_ID)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED, name
            assert cause in str(refused.value.details()), name
        assert await client.stored("Plain") == []
        plain = client.channel.unary_unary(SERVICE + "SendMessage")
        await plain(send(b"")[1], metadata=CLIENT_ID)
        assert [each.body for each in await client.stored("Plain")] == [b"body"]

    with_gateway(tmp_path, story)

"""POP requests to a RocketMQ or RayMQ broker, without a client."""

from __future__ import annotations

import asyncio

from actors.transport.client import RemotingClient
from actors.wire.bodies.pops import PopMessageHeader
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.header import Header
from store.common.clock import SystemClock
from tests.actors.broker.features.pop.pops import GROUP, Popped, ack_header, popped

TIMEOUT_MS = 20_000


def request(address: str, code: RequestCode, header: Header) -> RemotingCommand:
    """Send one request over a connection of its own, and return the response."""

    async def invoke() -> RemotingCommand:
        client = RemotingClient(SystemClock())
        try:
            return await client.invoke(address, RemotingCommand(code, header.to_ext()), TIMEOUT_MS)
        finally:
            await client.close()

    return asyncio.run(invoke())


def pop(address: str, topic: str, count: int, invisible_ms: int) -> list[Popped]:
    """Pop up to `count` messages of all queues, without waiting."""
    header = PopMessageHeader(GROUP, topic, -1, count, invisible_ms, 0, SystemClock().wall_ms())
    return popped(request(address, RequestCode.POP_MESSAGE, header))


def ack(address: str, each: Popped) -> None:
    assert request(address, RequestCode.ACK_MESSAGE, ack_header(each)).code == 0

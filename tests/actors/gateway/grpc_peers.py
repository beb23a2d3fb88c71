"""Servers and clients of the gRPC layer: methods to call, grpcio, and a peer that can send anything."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, TrailersReceived

from actors.gateway.grpc.calls import Call, Method
from actors.gateway.grpc.engine import FRAME_BYTES_MAX
from actors.gateway.grpc.limits import GrpcLimits
from actors.gateway.grpc.server import GrpcServer
from actors.gateway.grpc.status import CallFailed, StatusCode
from actors.gateway.proto.service_pb2 import SendMessageRequest
from actors.memory_account import MemoryAccount
from actors.transport.limits import RemotingLimits
from store.common.clock import SystemClock

ECHO, SLOW, FAIL, BUG, MANY, TALK, TAKE = (
    f"/test/{name}" for name in ("Echo", "Slow", "Fail", "Bug", "Many", "Talk", "Take")
)
BOMB = gzip.compress(bytes(100_000))
ENCODE, DECODE = SendMessageRequest.SerializeToString, SendMessageRequest.FromString
Headers = Sequence[tuple[str, str]]
LIMITS = GrpcLimits(streams_max=2000, control_frames_max=500)


class Service:
    """The methods under test, and what they have seen."""

    def __init__(self) -> None:
        self.started = self.cancelled = self.sent = 0
        self.metadata: list[dict[str, str]] = []
        self.talks: list[Call] = []
        self.methods = {
            ECHO: unary(self.echo),
            SLOW: unary(self.slow),
            FAIL: unary(self.fail),
            BUG: unary(self.bug),
            MANY: Method(SendMessageRequest, self.many, is_stream=True),
            TAKE: unary(self.take),
            TALK: Method(SendMessageRequest, self.talk, is_stream=True),
        }

    async def echo(self, call: Call, request: SendMessageRequest) -> SendMessageRequest:
        self.metadata.append(dict(call.metadata))
        return request

    async def take(self, call: Call, request: SendMessageRequest) -> SendMessageRequest:
        return message(len(request.messages[0].body) % 1000)

    async def slow(self, call: Call, request: SendMessageRequest) -> SendMessageRequest:
        self.started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def fail(self, call: Call, request: SendMessageRequest) -> SendMessageRequest:
        raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, "zu voll: 100 % – später")

    async def bug(self, call: Call, request: SendMessageRequest) -> SendMessageRequest:
        raise KeyError("missing")

    async def many(self, call: Call) -> None:
        request = await call.receive()
        for _ in range(400):
            await call.send(request)
            self.sent += 1

    async def talk(self, call: Call) -> None:
        self.talks.append(call)
        while (request := await call.receive()) is not None:
            await call.send(request)


def unary(handle: Callable[[Call, Any], Awaitable[Any]]) -> Method:
    async def serve(call: Call) -> None:
        await call.send(await handle(call, await call.request()))

    return Method(SendMessageRequest, serve)


def message(size: int = 5) -> SendMessageRequest:
    request = SendMessageRequest()
    request.messages.add(body=b"x" * size)
    return request


@asynccontextmanager
async def serving(
    limits: GrpcLimits = LIMITS, limit_bytes: int = 1 << 26
) -> AsyncIterator[tuple[Service, GrpcServer]]:
    service = Service()
    account = MemoryAccount(limit_bytes)
    server = GrpcServer(service.methods, SystemClock(), RemotingLimits(), account, limits)
    await server.start("127.0.0.1", 0)
    try:
        yield service, server
    finally:
        await server.stop()


def with_channel(
    story: Callable[[Service, GrpcServer, grpc.aio.Channel], Awaitable[None]],
    limits: GrpcLimits = LIMITS,
) -> None:
    async def run() -> None:
        async with serving(limits) as (service, server):
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
                await story(service, server, channel)

    asyncio.run(run())


def caller(channel: grpc.aio.Channel, path: str, **options: Any) -> Any:
    return channel.unary_unary(path, ENCODE, DECODE, **options)


async def error_of(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


class RawPeer:
    """An HTTP/2 client that can send anything."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()

    def request(
        self, path: str, data: bytes, *, end: bool = True, encoding: str = "identity", more: Headers = ()
    ) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "x")]
        headers += [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-encoding", encoding)]
        self.h2.send_headers(stream_id, [*headers, *more])
        for at in range(0, len(data), FRAME_BYTES_MAX):
            self.h2.send_data(stream_id, data[at : at + FRAME_BYTES_MAX])
        if end:
            self.h2.end_stream(stream_id)
        return stream_id

    async def until_closed(self) -> bytes:
        loop, received = asyncio.get_running_loop(), b""
        self.socket.setblocking(False)
        with self.socket:
            while True:
                try:
                    part = await loop.sock_recv(self.socket, 65536)
                except ConnectionResetError:
                    return received
                if not part:
                    return received
                received += part

    async def responses(self, count: int, *, last: bool = True) -> dict[int, tuple[bytes, dict[str, str]]]:
        """Return data and trailers of each stream, when `count` streams have ended."""
        loop, ended = asyncio.get_running_loop(), 0
        found: dict[int, tuple[bytes, dict[str, str]]] = {}
        self.socket.setblocking(False)
        while ended < count:
            for event in self.h2.receive_data(await loop.sock_recv(self.socket, 65536)):
                data, trailers = found.setdefault(getattr(event, "stream_id", 0) or 0, (b"", {}))
                if isinstance(event, DataReceived):
                    found[event.stream_id or 0] = (data + (event.data or b""), trailers)
                elif isinstance(event, TrailersReceived | ResponseReceived):
                    trailers.update(event.headers or [])
                elif isinstance(event, StreamEnded):
                    ended += 1
                assert not isinstance(event, ConnectionTerminated)
        if last:
            self.socket.close()
        return found

"""The gRPC layer against peers that misuse HTTP/2 and fill the memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc
import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from actors.gateway.grpc.limits import GrpcLimits
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.grpc.server import GrpcServer
from tests.actors.gateway.grpc_peers import (
    ECHO,
    SLOW,
    TALK,
    RawPeer,
    Service,
    caller,
    message,
    serving,
    with_channel,
)
from tests.eventually import eventually_async


def rapid_reset(peer: RawPeer) -> None:
    for _ in range(600):
        peer.h2.reset_stream(peer.request(SLOW, encode_frame(b"")))


def ping_flood(peer: RawPeer) -> None:
    for _ in range(600):
        peer.h2.ping(b"12345678")


def settings_flood(peer: RawPeer) -> None:
    peer.socket.sendall(peer.h2.data_to_send())
    peer.socket.sendall(SettingsFrame(0, settings={1: 4096}).serialize() * 600)


def empty_data(peer: RawPeer) -> None:
    stream_id = peer.request(TALK, b"", end=False)
    for _ in range(600):
        peer.h2.send_data(stream_id, b"")


def header_bomb(peer: RawPeer) -> None:
    stream_id = peer.h2.get_next_available_stream_id()
    headers = [(":method", "POST"), (":path", ECHO), (":scheme", "http"), (":authority", "x")]
    peer.h2.send_headers(stream_id, [*headers, *((f"x-{n}", "v" * 1000) for n in range(100))])


def continuation_flood(peer: RawPeer) -> None:
    peer.socket.sendall(peer.h2.data_to_send())
    frame = HeadersFrame(1, data=b"\x82")
    peer.socket.sendall(frame.serialize() + b"\x00\x00\x01\x09\x00\x00\x00\x00\x01\x82" * 5000)


def garbage(peer: RawPeer) -> None:
    peer.socket.sendall(peer.h2.data_to_send() + b"\xff" * 5000)


def wrong_ping(peer: RawPeer) -> None:
    peer.socket.sendall(peer.h2.data_to_send() + PingFrame(0, b"1" * 8).serialize()[:3] + b"\x06\x00" * 40)


ABUSES = (
    rapid_reset, ping_flood, settings_flood, empty_data, header_bomb, continuation_flood, garbage, wrong_ping,
)  # fmt: skip


@pytest.mark.parametrize("abuse", ABUSES, ids=lambda each: each.__name__)
def test_abuse_closes_its_connection_and_leaves_others_alone(abuse: Callable[[RawPeer], None]) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        assert await caller(channel, ECHO)(message()) == message()
        peer = RawPeer(server.port)
        abuse(peer)
        with contextlib.suppress(OSError):  # if it is already closed
            peer.socket.sendall(peer.h2.data_to_send())
        await peer.until_closed()
        assert await caller(channel, ECHO)(message()) == message()
        await eventually_async(lambda: len(server.hub.connections) == 1)

    with_channel(story)


@pytest.mark.parametrize("frame", [PingFrame, RstStreamFrame])
def test_client_may_send_a_control_frame_for_each_response(frame: type[Frame]) -> None:
    async def run() -> None:
        async with serving(GrpcLimits(control_frames_max=200)) as (_, server):
            peer = RawPeer(server.port)
            for _ in range(4):
                streams = [peer.request(ECHO, encode_frame(b"")) for _ in range(100)]
                peer.socket.sendall(peer.h2.data_to_send())
                await peer.responses(100, last=False)
                for stream_id in streams:  # a reset comes late: the response has ended
                    sent = PingFrame(0, b"12345678") if frame is PingFrame else RstStreamFrame(stream_id)
                    peer.socket.sendall(sent.serialize())
            peer.socket.close()

    asyncio.run(run())


def test_contradicted_content_length_cancels_the_call() -> None:
    async def run() -> None:
        async with serving() as (service, server):
            peer = RawPeer(server.port)
            stream_id = peer.request(SLOW, encode_frame(b""), end=False, more=[("content-length", "50")])
            peer.socket.sendall(peer.h2.data_to_send())
            await eventually_async(lambda: service.started == 1)
            peer.socket.sendall(DataFrame(stream_id, flags=["END_STREAM"]).serialize())
            await eventually_async(lambda: service.cancelled == 1)
            peer.socket.close()

    asyncio.run(run())


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 40])
def test_other_protocols_are_closed_with_a_log_line(first: bytes) -> None:
    async def run() -> None:
        async with serving() as (_, server):
            peer = RawPeer(server.port)
            peer.socket.sendall(first + b"\0" * 64)
            await peer.until_closed()
            await eventually_async(lambda: not server.hub.connections)

    asyncio.run(run())

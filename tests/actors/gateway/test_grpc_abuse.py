"""The gRPC layer, with both engines, against peers that misuse HTTP/2 and fill the memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import struct
from collections.abc import Callable

import grpc
import pytest
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from actors.gateway.grpc.connection import GrpcLimits
from actors.gateway.grpc.engine import NewEngine
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.grpc.server import GrpcServer
from actors.gateway.grpc.status import StatusCode
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


def zero_window(peer: RawPeer) -> None:
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    packed = gzip.compress(message(4 * 1024 * 1024).SerializeToString())
    for _ in range(5):  # their responses exceed unsent_bytes_max
        peer.request(ECHO, struct.pack(">BI", 1, len(packed)) + packed, encoding="gzip")


ABUSES = (
    rapid_reset, ping_flood, settings_flood, empty_data, header_bomb, continuation_flood, garbage, wrong_ping,
    zero_window,
)  # fmt: skip


@pytest.mark.parametrize("abuse", ABUSES, ids=lambda each: each.__name__)
def test_abuse_closes_its_connection_and_leaves_others_alone(
    engine: NewEngine, abuse: Callable[[RawPeer], None]
) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        assert await caller(channel, ECHO)(message()) == message()
        peer = RawPeer(server.port)
        abuse(peer)
        with contextlib.suppress(OSError):  # if it is already closed
            peer.socket.sendall(peer.h2.data_to_send())
        await peer.until_closed()
        assert await caller(channel, ECHO)(message()) == message()
        await eventually_async(lambda: len(server.hub.connections) == 1)

    with_channel(engine, story)


@pytest.mark.parametrize("frame", [PingFrame, RstStreamFrame])
def test_client_may_send_a_control_frame_for_each_response(engine: NewEngine, frame: type[Frame]) -> None:
    async def run() -> None:
        async with serving(engine, GrpcLimits(control_frames_max=200)) as (_, server):
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


def test_contradicted_content_length_cancels_the_call(engine: NewEngine) -> None:
    async def run() -> None:
        async with serving(engine) as (service, server):
            peer = RawPeer(server.port)
            stream_id = peer.request(SLOW, encode_frame(b""), end=False, more=[("content-length", "50")])
            peer.socket.sendall(peer.h2.data_to_send())
            await eventually_async(lambda: service.started == 1)
            peer.socket.sendall(DataFrame(stream_id, flags=["END_STREAM"]).serialize())
            await eventually_async(lambda: service.cancelled == 1)
            peer.socket.close()

    asyncio.run(run())


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 40])
def test_other_protocols_are_closed_with_a_log_line(engine: NewEngine, first: bytes) -> None:
    async def run() -> None:
        async with serving(engine) as (_, server):
            peer = RawPeer(server.port)
            peer.socket.sendall(first + b"\0" * 64)
            await peer.until_closed()
            await eventually_async(lambda: not server.hub.connections)

    asyncio.run(run())


def test_incomplete_requests_of_all_connections_are_bounded(engine: NewEngine) -> None:
    async def run() -> None:
        async with serving(engine, GrpcLimits(incomplete_bytes_max=80_000)) as (_, server):
            first, second = RawPeer(server.port), RawPeer(server.port)
            part = struct.pack(">BI", 0, 60_000) + b"x" * 16_000
            for _ in range(3):
                first.request(ECHO, part, end=False)
            first.socket.sendall(first.h2.data_to_send())
            await asyncio.sleep(0)
            for _ in range(3):
                second.request(ECHO, part, end=False)
            second.socket.sendall(second.h2.data_to_send())
            peers = [asyncio.create_task(each.responses(1)) for each in (first, second)]
            done, _ = await asyncio.wait(peers, return_when=asyncio.FIRST_COMPLETED)
            trailers = [each for _, each in next(iter(done)).result().values() if each]
            assert trailers[0]["grpc-status"] == str(int(StatusCode.RESOURCE_EXHAUSTED))
            for each in peers:
                each.cancel()

    asyncio.run(run())


def test_unread_responses_of_all_connections_are_bounded(engine: NewEngine) -> None:
    async def run() -> None:
        async with serving(engine, max_unread_bytes=1024 * 1024) as (_, server):
            least, most = RawPeer(server.port), RawPeer(server.port)
            for peer, count, size in ((least, 1, 300_000), (most, 4, 900_000)):
                peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
                for _ in range(count):
                    packed = gzip.compress(message(size).SerializeToString())
                    peer.request(ECHO, struct.pack(">BI", 1, len(packed)) + packed, encoding="gzip")
                peer.socket.sendall(peer.h2.data_to_send())
            await most.until_closed()
            assert len(server.hub.connections) == 1
            least.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1_000_000})
            least.h2.increment_flow_control_window(1_000_000)
            least.socket.sendall(least.h2.data_to_send())
            ((data, _),) = [each for each in (await least.responses(1)).values() if each[0]]
            assert len(data) > 300_000
            assert server.hub.unread_bytes == 0

    asyncio.run(run())

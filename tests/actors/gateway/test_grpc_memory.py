"""The memory that peers make a gRPC server keep, with lowered limits: requests and responses."""

from __future__ import annotations

import asyncio
import gc
import gzip
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame

from actors.gateway.grpc import calls
from actors.gateway.grpc.limits import GrpcLimits
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.grpc.server import GrpcServer
from actors.gateway.grpc.status import StatusCode
from tests.actors.gateway.grpc_peers import (
    ECHO,
    SLOW,
    TAKE,
    TALK,
    RawPeer,
    caller,
    message,
    serving,
)
from tests.eventually import eventually_async

LIMIT = 4 * 1024 * 1024


def packed(size: int) -> bytes:
    """Return a gzip message, which is small."""
    data = gzip.compress(message(size).SerializeToString())
    return struct.pack(">BI", 1, len(data)) + data


def never_ending(peer: RawPeer) -> None:
    """Begin requests of 60 KB, and leave out the last byte."""
    for _ in range(4):
        peer.request(ECHO, encode_frame(message(60_000).SerializeToString())[:-1], end=False)


def without_data(peer: RawPeer) -> None:
    for _ in range(100):  # one byte each, after the first one
        peer.request(ECHO, b"", end=False, more=[("x-mq-filler", "v" * 3000)])


def unread(peer: RawPeer) -> None:
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    for _ in range(30):
        peer.request(ECHO, packed(100_000), encoding="gzip")


def unread_streams(peer: RawPeer) -> None:
    """Send many requests on streams whose first response is not read."""
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    for _ in range(20):
        peer.request(TALK, packed(100_000) * 50, encoding="gzip", end=False)


def prefixes_only(peer: RawPeer) -> None:
    """Announce requests of 1 MB."""
    for _ in range(40):
        peer.request(ECHO, struct.pack(">BI", 0, 1_000_000), end=False)


FILLS = (never_ending, without_data, unread, unread_streams, prefixes_only)
LOWERED = GrpcLimits(window_bytes=64 * 1024)


async def connected(server: GrpcServer) -> RawPeer:
    """Return a peer that knows the windows of the server."""
    peer = RawPeer(server.port)
    await sent(peer)
    while peer.h2.outbound_flow_control_window < 100_000:
        peer.h2.receive_data(await asyncio.get_running_loop().sock_recv(peer.socket, 65536))
    return peer


async def sent(peer: RawPeer) -> None:
    """Send everything that the peer has to send, and forget what it receives."""
    peer.socket.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(peer.socket, peer.h2.data_to_send())


def with_fills(fill: Callable[[RawPeer], None], story: Callable[..., Awaitable[None]]) -> None:
    """Run a story while 20 connections of one address fill the memory."""

    async def run() -> None:
        async with serving(LOWERED, LIMIT) as (_, server):
            peers = [await connected(server) for _ in range(20)]
            for peer in peers:
                fill(peer)
            filling = [asyncio.create_task(sent(peer)) for peer in peers]
            await eventually_async(lambda: server.account.peak_bytes > LIMIT // 2)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                await story(server, channel)
            for task in filling:
                task.cancel()
            for peer in peers:
                peer.socket.close()
            await eventually_async(lambda: server.account.used_bytes == 0)

    asyncio.run(run())


@pytest.mark.parametrize("fill", FILLS, ids=lambda each: each.__name__)
def test_good_calls_succeed_while_others_fill_the_memory(fill: Callable[[RawPeer], None]) -> None:
    async def story(server: GrpcServer, channel: grpc.aio.Channel) -> None:
        for size in (5, 30_000, 60_000, 5, 30_000):
            assert await caller(channel, ECHO)(message(size)) == message(size)
            assert server.account.used_bytes <= LIMIT

    with_fills(fill, story)


def test_large_requests_wait_for_their_turn() -> None:
    async def run() -> None:
        async with serving(LOWERED, LIMIT) as (_, server):
            channels = [grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", [("n", n)]) for n in range(12)]
            found = await asyncio.gather(*(caller(each, TAKE)(message(1_000_005)) for each in channels))
            assert [len(each.messages[0].body) for each in found] == [5] * 12
            assert server.account.peak_bytes <= LIMIT
            for channel in channels:
                await channel.close()

    asyncio.run(run())


def test_handled_requests_give_back_the_window_of_the_connection() -> None:
    limits = GrpcLimits(window_bytes=64 * 1024, streams_max=4)

    async def run() -> None:
        async with (
            serving(limits, LIMIT) as (_, server),
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            for size in (8_000, 60_000) * 30:  # several windows of 320 KB
                assert await caller(channel, TAKE)(message(size), timeout=30)

    asyncio.run(run())


def test_requests_of_one_connection_do_not_wait_for_each_other() -> None:
    async def run() -> None:
        async with serving(LOWERED, LIMIT) as (_, server):
            peer = await connected(server)
            frame = encode_frame(message(60_000).SerializeToString())
            streams = [peer.request(TAKE, frame[:50_000], end=False) for _ in range(30)]
            await sent(peer)
            for stream_id in streams:
                peer.h2.send_data(stream_id, frame[50_000:], end_stream=True)
            await sent(peer)
            found = await peer.responses(30)
            assert {each.get("grpc-status") for _, each in found.values() if each} == {"0"}

    asyncio.run(run())


def test_request_with_its_place_does_not_wait_for_one_without() -> None:
    async def run() -> None:
        async with serving(LOWERED, 800_000) as (_, server):
            peer = await connected(server)
            frame = encode_frame(message(90_000).SerializeToString())
            long = peer.request(TAKE, frame[:60_000], end=False)
            await sent(peer)
            while peer.h2.local_flow_control_window(long) < len(frame) - 60_000:  # it has its place
                peer.h2.receive_data(await asyncio.get_running_loop().sock_recv(peer.socket, 65536))
            peer.request(TAKE, packed(300_000), encoding="gzip")
            await sent(peer)
            await eventually_async(lambda: server.account.waiting == 1)
            for at in range(60_000, len(frame), 16_000):
                peer.h2.send_data(long, frame[at : at + 16_000], end_stream=at + 16_000 >= len(frame))
            await sent(peer)
            found = await peer.responses(2)
            assert [each["grpc-status"] for _, each in found.values() if each] == ["0", "0"]

    asyncio.run(run())


def test_windows_are_not_given_back_while_the_handler_waits() -> None:
    async def run() -> None:
        async with serving(GrpcLimits(window_bytes=256 * 1024), LIMIT) as (service, server):
            peer = await connected(server)
            frame = encode_frame(message(40_000).SerializeToString())
            first = peer.request(SLOW, frame[:-1], end=False)
            peer.h2.send_data(first, frame[-1:])
            stalled = peer.request(TALK, b"", end=False)
            peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            for at in range(0, 5 * len(frame), 10_000):
                peer.h2.send_data(stalled, (5 * frame)[at : at + 10_000])
            await sent(peer)
            await eventually_async(lambda: bool(service.talks) and len(service.talks[0].intake) == 3)
            assert server.account.used_bytes >= 5 * 40_000
            # The peer exceeds the window of its stream, with valid requests: the connection is closed.
            peer.socket.setblocking(True)
            more = (8 * frame)[: 20 * 16_000]
            parts = (more[at : at + 16_000] for at in range(0, len(more), 16_000))
            peer.socket.sendall(b"".join(DataFrame(stalled, each).serialize() for each in parts))
            await peer.until_closed()
            await eventually_async(lambda: server.account.used_bytes == 0)

    asyncio.run(run())


def test_incomplete_requests_end_sooner_while_others_wait() -> None:
    async def run() -> None:
        limits = GrpcLimits(window_bytes=256 * 1024, crowded_timeout_ms=0)
        async with serving(limits, LIMIT) as (_, server):
            peers = [await connected(server) for _ in range(4)]
            for peer in peers:
                peer.request(ECHO, struct.pack(">BI", 0, 1_000_000), end=False)
                await sent(peer)
            await eventually_async(lambda: server.account.waiting > 0)
            for waiting in (2, 1, 0):  # one request at a time has its place
                while server.account.waiting > waiting:
                    server.hub.sweep()
                assert server.account.waiting == waiting
            receiving = [asyncio.create_task(peer.responses(1)) for peer in peers]
            done, _ = await asyncio.wait(receiving, return_when=asyncio.FIRST_COMPLETED)
            trailers = [each for _, each in done.pop().result().values() if each]
            assert trailers[0]["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
            for task in receiving:
                task.cancel()
            for peer in peers:
                peer.socket.close()

    asyncio.run(run())


@pytest.mark.parametrize("fill", FILLS, ids=lambda each: each.__name__)
def test_closed_connections_leave_nothing_behind(
    fill: Callable[[RawPeer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    begin = calls.Call.__init__

    def noted(self: calls.Call, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        seen.append(weakref.ref(args[4]))  # the connection

    async def run() -> None:
        async with serving(LOWERED, LIMIT) as (service, server):
            peer = await connected(server)
            fill(peer)
            filling = asyncio.create_task(sent(peer))
            await eventually_async(lambda: bool(seen))
            filling.cancel()
            peer.socket.close()
            await eventually_async(lambda: not server.hub.connections and server.account.used_bytes == 0)
            service.talks.clear()
            await eventually_async(lambda: seen[0]() is None)

    monkeypatch.setattr(calls.Call, "__init__", noted)
    gc.collect()
    gc.disable()  # it runs rarely in a serving process
    try:
        asyncio.run(run())
    finally:
        gc.enable()

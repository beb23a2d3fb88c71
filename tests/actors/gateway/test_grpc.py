"""The gRPC layer, with both engines, against grpcio's client and against peers that misuse HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, TrailersReceived
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.gateway.grpc.calls import Call, Method
from actors.gateway.grpc.connection import GrpcLimits
from actors.gateway.grpc.engine import NewEngine
from actors.gateway.grpc.h2_engine import H2Engine
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.grpc.ngh2_engine import Ngh2Engine
from actors.gateway.grpc.server import GrpcServer
from actors.gateway.grpc.status import CallFailed, StatusCode
from actors.gateway.proto.service_pb2 import SendMessageRequest
from actors.remoting.limits import RemotingLimits
from store.clock import SystemClock
from tests.eventually import eventually_async

ECHO, SLOW, FAIL, BUG, MANY, TALK = (
    f"/test/{name}" for name in ("Echo", "Slow", "Fail", "Bug", "Many", "Talk")
)
BOMB = gzip.compress(bytes(100_000))
ENCODE, DECODE = SendMessageRequest.SerializeToString, SendMessageRequest.FromString
Headers = Sequence[tuple[str, str]]
LIMITS = GrpcLimits(streams_max=2000, control_frames_max=500, unsent_bytes_max=16 * 1024 * 1024)


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
            TALK: Method(SendMessageRequest, self.talk, is_stream=True),
        }

    async def echo(self, call: Call, request: SendMessageRequest) -> SendMessageRequest:
        self.metadata.append(dict(call.metadata))
        return request

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


@pytest.fixture(params=[Ngh2Engine, H2Engine])
def engine(request: pytest.FixtureRequest) -> NewEngine:
    made: NewEngine = request.param
    return made


def message(size: int = 5) -> SendMessageRequest:
    request = SendMessageRequest()
    request.messages.add(body=b"x" * size)
    return request


@asynccontextmanager
async def serving(
    engine: NewEngine, limits: GrpcLimits = LIMITS, max_unread_bytes: int = 1 << 30
) -> AsyncIterator[tuple[Service, GrpcServer]]:
    service = Service()
    remoting_limits = RemotingLimits(max_unread_bytes=max_unread_bytes)
    server = GrpcServer(service.methods, SystemClock(), remoting_limits, limits, new_engine=engine)
    await server.start("127.0.0.1", 0)
    try:
        yield service, server
    finally:
        await server.stop()


def with_channel(
    engine: NewEngine, story: Callable[[Service, GrpcServer, grpc.aio.Channel], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with serving(engine) as (service, server):
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


def test_unary_calls_of_any_size_are_answered(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        for size in (0, 1, 16_380, 70_000, 4 * 1024 * 1024):
            response = await caller(channel, ECHO)(message(size), metadata=(("x-mq-client-id", "c1"),))
            assert len(response.messages[0].body) == size
        assert service.metadata[0]["x-mq-client-id"] == "c1"

    with_channel(engine, story)


def test_response_of_another_task_ends_with_the_call(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        stream = channel.stream_stream(TALK, ENCODE, DECODE)()
        await eventually_async(lambda: bool(service.talks))
        large = message(8 * 1024 * 1024)
        sending = asyncio.ensure_future(service.talks[0].send(large))
        await eventually_async(lambda: server.hub.unread_bytes > 0)
        stream.cancel()
        await sending
        await service.talks[0].send(large)
        assert server.hub.unread_bytes == 0

    with_channel(engine, story)


def test_a_thousand_calls_run_at_once_on_one_connection(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        found = await asyncio.gather(*(caller(channel, ECHO)(message(n)) for n in range(1000)))
        assert [len(each.messages[0].body) for each in found] == list(range(1000))

    with_channel(engine, story)


def test_errors_end_a_call_with_their_status(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        assert await error_of(caller(channel, FAIL)(message())) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED, "zu voll: 100 % – später",
        )  # fmt: skip
        assert await error_of(caller(channel, BUG)(message())) == (
            grpc.StatusCode.INTERNAL, "KeyError: 'missing'",
        )  # fmt: skip
        code, text = await error_of(caller(channel, "/test/None")(message()))
        assert (code, text) == (
            grpc.StatusCode.UNIMPLEMENTED, "this server does not have the method /test/None",
        )  # fmt: skip
        code, text = await error_of(caller(channel, ECHO)(message(6 * 1024 * 1024)))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text is not None
        assert "5,242,880" in text
        send = channel.unary_unary(ECHO, lambda raw: raw, SendMessageRequest.FromString)
        code, text = await error_of(send(b"\xff\xff\xff"))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert await caller(channel, ECHO)(message()) == message()

    with_channel(engine, story)


def test_deadline_and_cancellation_stop_the_handler(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        call = caller(channel, SLOW)(message())
        await eventually_async(lambda: service.started == 1)
        call.cancel()
        await eventually_async(lambda: service.cancelled == 1)
        code, _ = await error_of(caller(channel, SLOW)(message(), timeout=0.2))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert await caller(channel, ECHO)(message()) == message()

    with_channel(engine, story)


def test_compressed_requests_are_read(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        call = caller(channel, ECHO)(message(100_000), compression=grpc.Compression.Gzip)
        assert await call == message(100_000)
        code, text = await error_of(
            caller(channel, ECHO)(message(6 * 1024 * 1024), compression=grpc.Compression.Gzip)
        )
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, text

    with_channel(engine, story)


def test_a_slow_reader_holds_up_only_its_own_stream(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        many = channel.unary_stream(MANY, ENCODE, DECODE)
        stream = many(message(50_000))
        await stream.read()
        await eventually_async(lambda: service.sent > 0)
        assert await caller(channel, ECHO)(message()) == message()
        assert service.sent < 400
        received = 1
        while await stream.read() is not grpc.aio.EOF:
            received += 1
        assert received == service.sent == 400

    with_channel(engine, story)


def test_both_sides_of_a_stream_send_messages(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        talk = channel.stream_stream(TALK, ENCODE, DECODE)()
        for size in (1, 30_000, 7):
            await talk.write(message(size))
            assert await talk.read() == message(size)
        await talk.done_writing()
        assert await talk.read() is grpc.aio.EOF
        assert await talk.code() == grpc.StatusCode.OK

    with_channel(engine, story)


def test_a_stopping_server_lets_open_calls_end(engine: NewEngine) -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        talk = channel.stream_stream(TALK, ENCODE, DECODE)()
        await talk.write(message())
        await talk.read()
        stopping = asyncio.create_task(server.stop(drain_ms=60_000))
        await talk.write(message(2))
        assert await talk.read() == message(2)
        await talk.done_writing()
        assert await talk.code() == grpc.StatusCode.OK
        await stopping

    with_channel(engine, story)


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
        if data or end:
            self.h2.send_data(stream_id, data, end_stream=end)
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


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 4000), max_size=20), st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_calls_are_equal_for_any_split_of_their_bytes(
    engine: NewEngine, cuts: list[int], sizes: list[int]
) -> None:
    async def run() -> None:
        async with serving(engine) as (_, server):
            peer = RawPeer(server.port)
            frames = {peer.request(ECHO, encode_frame(message(n).SerializeToString())): n for n in sizes}
            stream = peer.h2.data_to_send()
            places = sorted({cut % len(stream) for cut in cuts})
            for begin, end in zip((0, *places), (*places, len(stream)), strict=True):
                peer.socket.sendall(stream[begin:end])
                await asyncio.sleep(0)
            found = await peer.responses(len(sizes))
            for stream_id, size in frames.items():
                data, trailers = found[stream_id]
                assert data == encode_frame(message(size).SerializeToString())
                assert trailers["grpc-status"] == "0"

    asyncio.run(run())


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

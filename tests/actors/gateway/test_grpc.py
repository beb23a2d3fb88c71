"""The gRPC layer against grpcio's client and against peers that misuse HTTP/2."""

from __future__ import annotations

import asyncio

import grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.gateway.grpc.limits import STREAMS, GrpcLimits
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.grpc.server import GrpcServer
from actors.gateway.proto.service_pb2 import SendMessageRequest
from tests.actors.gateway.grpc_peers import (
    BUG,
    DECODE,
    ECHO,
    ENCODE,
    FAIL,
    MANY,
    SLOW,
    TALK,
    RawPeer,
    Service,
    caller,
    error_of,
    message,
    serving,
    with_channel,
)
from tests.eventually import eventually_async


def test_unary_calls_of_any_size_are_answered() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        for size in (0, 1, 16_380, 70_000, 4 * 1024 * 1024):
            response = await caller(channel, ECHO)(message(size), metadata=(("x-mq-client-id", "c1"),))
            assert len(response.messages[0].body) == size
        assert service.metadata[0]["x-mq-client-id"] == "c1"

    with_channel(story)


def test_response_of_another_task_ends_with_the_call() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        stream = channel.stream_stream(TALK, ENCODE, DECODE)()
        await eventually_async(lambda: bool(service.talks))
        large = message(8 * 1024 * 1024)
        sending = asyncio.ensure_future(service.talks[0].send(large))
        await eventually_async(lambda: server.account.used_bytes > 1_000_000)
        stream.cancel()
        await sending
        await service.talks[0].send(large)
        assert server.account.used_bytes < 100_000

    with_channel(story)


def test_a_thousand_calls_run_at_once_on_one_connection() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        found = await asyncio.gather(*(caller(channel, ECHO)(message(n)) for n in range(1000)))
        assert [len(each.messages[0].body) for each in found] == list(range(1000))

    with_channel(story)


def test_calls_over_the_limit_of_a_connection_wait_for_others() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        await caller(channel, ECHO)(message())  # the client knows the limit
        calls = [caller(channel, SLOW)(message()) for _ in range(3)]
        await eventually_async(lambda: service.started == 2)
        (streams,) = (each for each in server.bounds() if each.bound is STREAMS)
        assert (streams.read(), streams.limit()) == (2, 2)
        assert service.started == 2
        for call in calls:
            call.cancel()
        await eventually_async(lambda: streams.read() == 0)
        assert await caller(channel, ECHO)(message()) == message()

    with_channel(story, GrpcLimits(streams_max=2))


def test_errors_end_a_call_with_their_status() -> None:
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

    with_channel(story)


def test_deadline_and_cancellation_stop_the_handler() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        call = caller(channel, SLOW)(message())
        await eventually_async(lambda: service.started == 1)
        call.cancel()
        await eventually_async(lambda: service.cancelled == 1)
        code, _ = await error_of(caller(channel, SLOW)(message(), timeout=0.2))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert await caller(channel, ECHO)(message()) == message()

    with_channel(story)


def test_compressed_requests_are_read() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        call = caller(channel, ECHO)(message(100_000), compression=grpc.Compression.Gzip)
        assert await call == message(100_000)
        code, text = await error_of(
            caller(channel, ECHO)(message(6 * 1024 * 1024), compression=grpc.Compression.Gzip)
        )
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, text

    with_channel(story)


def test_a_slow_reader_holds_up_only_its_own_stream() -> None:
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

    with_channel(story)


def test_both_sides_of_a_stream_send_messages() -> None:
    async def story(service: Service, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        talk = channel.stream_stream(TALK, ENCODE, DECODE)()
        for size in (1, 30_000, 7):
            await talk.write(message(size))
            assert await talk.read() == message(size)
        await talk.done_writing()
        assert await talk.read() is grpc.aio.EOF
        assert await talk.code() == grpc.StatusCode.OK

    with_channel(story)


def test_a_stopping_server_lets_open_calls_end() -> None:
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

    with_channel(story)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 4000), max_size=20), st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_calls_are_equal_for_any_split_of_their_bytes(cuts: list[int], sizes: list[int]) -> None:
    async def run() -> None:
        async with serving() as (_, server):
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

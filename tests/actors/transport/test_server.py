"""RemotingServer over sockets: order of responses, errors, and bytes of other protocols."""

from __future__ import annotations

import os

import pytest
import structlog

from actors.broker.core.counters import RequestCounters
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.codes import FLAG_ONEWAY, ResponseCode
from actors.wire.command import PREFIX, RemotingCommand
from actors.wire.remoting_errors import Refused
from store.store_errors import MessageInvalid, StoreError
from tests.actors.transport.remoting_peers import ECHO, echo, raw_peer, request, run, serving
from tests.conftest import ClockAtRest


@pytest.mark.parametrize("serialize_type", [0, 1], ids=["json", "rocketmq"])
def test_response_has_opaque_and_encoding_of_the_request(serialize_type: int) -> None:
    async def story() -> RemotingCommand:
        async with serving() as server, raw_peer(server) as peer:
            command = request(ECHO, 77, b"body", k="v")
            command.serialize_type = serialize_type
            peer.send(command)
            return await peer.read()

    response = run(story())
    assert (response.code, response.opaque, response.flag, response.ext, bytes(response.body)) == (
        0,
        77,
        1,
        {"k": "v"},
        b"body",
    )
    assert response.serialize_type == serialize_type


def test_responses_may_be_reordered_and_oneway_requests_get_none() -> None:
    held: list[RequestContext] = []

    def hold(context: RequestContext) -> None:
        held.append(context)

    async def story() -> list[int]:
        async with serving({1: echo, 2: hold}) as server, raw_peer(server) as peer:
            oneway = request(ECHO, 2)
            oneway.flag = FLAG_ONEWAY
            peer.send(request(2, 1), oneway, request(ECHO, 3))
            first = await peer.read()
            held[0].reply(RemotingCommand.response())
            held[0].reply(RemotingCommand.response(1, "a second response"))
            peer.send(request(ECHO, 4))
            second, third = await peer.read(), await peer.read()
            return [first.opaque, second.opaque, third.opaque]

    assert run(story()) == [3, 1, 4]


def test_exception_in_a_handler_becomes_the_error_response() -> None:
    def refuse(context: RequestContext) -> None:
        raise Refused(ResponseCode.NO_PERMISSION, "the topic is read-only")

    def illegal(context: RequestContext) -> None:
        raise MessageInvalid("too long")

    def damaged(context: RequestContext) -> None:
        raise StoreError("bad record", "00000", 7)

    def bug(context: RequestContext) -> None:
        raise ZeroDivisionError("division by zero")

    async def slow_bug(context: RequestContext) -> RemotingCommand:
        raise Refused(ResponseCode.SYSTEM_BUSY, "later")

    handlers = {
        1: refuse,
        2: illegal,
        3: damaged,
        4: bug,
        5: lambda context: context.spawn(slow_bug(context)),
    }

    async def story() -> list[tuple[int, str | None]]:
        async with serving(handlers) as server, raw_peer(server) as peer:
            responses = []
            for code in (1, 2, 3, 4, 5, 99):
                peer.send(request(code, code))
                response = await peer.read()
                assert response.opaque == code
                responses.append((response.code, response.remark))
            return responses

    assert run(story()) == [
        (16, "the topic is read-only"),
        (13, "too long"),
        (1, "StoreError: 00000: bad record (at byte 7)"),
        (1, "ZeroDivisionError: division by zero"),
        (2, "later"),
        (3, "request code 99 is not supported by this process"),
    ]


def test_numeric_header_fields_reach_the_handler_as_strings() -> None:
    def repeat(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(remark=context.command.ext["topic"] * 2)

    header = b'{"code":1,"extFields":{"topic":5},"flag":0,"language":"JAVA","opaque":8,"version":479}'

    async def story() -> str | None:
        async with serving({1: repeat}) as server, raw_peer(server) as peer:
            peer.write(PREFIX.pack(4 + len(header), len(header)) + header)
            return (await peer.read()).remark

    assert run(story()) == "55"


@pytest.mark.parametrize(
    ("data", "looks_like"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS handshake"),
        (b"\xff" * 64, "an unknown protocol"),
        (PREFIX.pack(20, 16) + b"{'code': 'wrong'}"[:16], "a JSON header that begins with"),
        (PREFIX.pack(12, 8 | 9 << 24) + b"x" * 8, "a newer protocol"),
        (b"\x00" * 64, "an unknown protocol"),
    ],
    ids=["http", "tls", "huge", "json", "type", "zeros"],
)
def test_bytes_of_other_protocols_close_the_connection_with_one_warning(data: bytes, looks_like: str) -> None:
    async def story() -> None:
        async with serving() as server, raw_peer(server) as bad, raw_peer(server) as good:
            bad.write(data)
            assert await bad.is_closed()
            good.send(request(ECHO, 1))
            assert (await good.read()).opaque == 1

    with structlog.testing.capture_logs() as logs:
        run(story())
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert line["event"] == "connection_refused"
    assert looks_like in line["looks_like"]


def test_unexpected_responses_and_duplicate_opaques_are_harmless() -> None:
    async def story() -> list[int]:
        async with serving() as server, raw_peer(server) as peer:
            stray = RemotingCommand.response(0, "unexpected")
            stray.opaque = 2**31 - 1
            nonsense = request(ECHO, 5)
            nonsense.flag = 0x7FFF_FFF0  # undefined flag bits
            peer.send(stray, request(ECHO, 7), request(ECHO, 7), stray, nonsense)
            responses = [await peer.read() for _ in range(3)]
            assert all(response.is_response for response in responses)
            return [response.opaque for response in responses]

    assert run(story()) == [7, 7, 5]


def test_server_survives_random_bytes() -> None:
    async def story() -> None:
        async with serving() as server:
            for _ in range(30):
                async with raw_peer(server) as peer:
                    peer.write(os.urandom(200))
                    peer.writer.write_eof()
                    assert await peer.is_closed()
            async with raw_peer(server) as peer:
                peer.send(request(ECHO, 1))
                assert (await peer.read()).opaque == 1
            assert server.hub.memory.assembly_bytes == 0

    with structlog.testing.capture_logs():
        run(story())


def test_responses_of_a_turn_are_one_write_after_one_tick(clock) -> None:
    ticks: list[int] = []
    seen: list[int] = []

    def note(context: RequestContext) -> RemotingCommand:
        seen.append(context.command.opaque)
        return RemotingCommand.response()

    async def story() -> None:
        async with (
            serving({1: note}, clock=clock, tick=lambda: ticks.append(len(seen))) as server,
            raw_peer(server) as peer,
        ):
            peer.send(request(1, 0))
            await peer.read()
            before = peer.segments_received
            await peer.deliver(*(request(1, number) for number in range(1, 51)))
            for _ in range(50):
                await peer.read()
            assert peer.segments_received - before == 1

    run(story())
    assert ticks[-1] == 51
    assert len(ticks) <= 3


def test_port_in_use_is_an_error_and_stopping_frees_the_port() -> None:
    async def story() -> None:
        async with serving() as server:
            port = server.port
            async with serving() as other:
                with pytest.raises(OSError, match="in use"):
                    await other.start("127.0.0.1", port)
        async with serving() as again:
            del again

    run(story())


def test_observers_get_status_duration_and_size_of_each_response() -> None:
    clock, counters = ClockAtRest(), RequestCounters()

    def refuse(context: RequestContext) -> None:
        clock.advance(5)
        raise Refused(ResponseCode.SYSTEM_BUSY, "no")

    async def story() -> None:
        table = RequestTable([RequestRow(1, echo), RequestRow(2, refuse)])
        server = RemotingServer(table, clock, observers=(counters,))
        await server.start("127.0.0.1", 0)
        async with raw_peer(server) as peer:
            peer.send(request(1, 1, b"body"), request(2, 2), request(1, 3), request(9, 4))
            for _ in range(4):
                await peer.read()
        await server.stop()

    run(story())
    busy, unknown = ResponseCode.SYSTEM_BUSY, ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert counters.responses == {(1, 0): 2, (2, busy): 1, (0, unknown): 1}
    assert counters.duration_ns[2] == 5_000_000
    assert counters.response_bytes[1] == len(b"body")
    assert counters.failed({1, 2}) == 1


@pytest.mark.parametrize("cost", [Cost.SEND, Cost.PULL])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_request_that_closes_its_connection_is_answered_and_is_the_last(cost: Cost, body: bytes) -> None:
    handled: list[int] = []

    def reply_and_close(context: RequestContext) -> None:
        handled.append(context.command.opaque)
        context.reply(RemotingCommand.response(remark="bye"))
        context.connection.close("closed by the handler")

    async def story() -> str | None:
        async with serving({1: reply_and_close}, costs={1: cost}) as server, raw_peer(server) as peer:
            await peer.deliver(request(1, 1, body), request(1, 2, body))
            response = await peer.read()
            assert await peer.is_closed()
            return response.remark

    assert run(story()) == "bye"
    assert handled == [1]

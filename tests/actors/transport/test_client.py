"""RemotingClient: connections by address, responses by opaque, timeouts, and requests by the server."""

from __future__ import annotations

import asyncio
import socket

import pytest

from actors.transport.client import RemotingClient, parse_address
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Closed, ConnectFailed, Refused, RemotingError, TimedOut
from store.common.clock import SystemClock
from tests.actors.transport.remoting_peers import ECHO, TIMEOUT_MS, echo, run, serving
from tests.eventually import eventually_async


def never_respond(context: RequestContext) -> None:
    return None


def test_concurrent_requests_share_a_connection_and_get_their_own_responses() -> None:
    async def story() -> None:
        async with serving() as server:
            client = RemotingClient(SystemClock())
            address = f"127.0.0.1:{server.port}"
            responses = await asyncio.gather(
                *(
                    client.invoke(address, RemotingCommand(ECHO, {"n": str(n)}, b"x" * n * 3000), TIMEOUT_MS)
                    for n in range(50)
                )
            )
            assert [response.ext["n"] for response in responses] == [str(n) for n in range(50)]
            assert [len(response.body) for response in responses] == [n * 3000 for n in range(50)]
            assert len(server.connections) == 1
            await client.close()

    run(story())


def test_error_response_is_returned_by_invoke_and_raised_by_ask() -> None:
    async def story() -> None:
        async with serving() as server:
            client = RemotingClient(SystemClock())
            address = f"127.0.0.1:{server.port}"
            assert (await client.invoke(address, RemotingCommand(99), TIMEOUT_MS)).code == 3
            with pytest.raises(Refused, match="request code 99 is not supported"):
                await client.ask(address, RemotingCommand(99), TIMEOUT_MS)
            await client.close()

    run(story())


def test_unreachable_address_raises_connect_failed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, so no other process uses it, but not listening

        async def story() -> None:
            client = RemotingClient(SystemClock())
            with pytest.raises(ConnectFailed, match="could not connect"):
                await client.invoke(f"127.0.0.1:{port}", RemotingCommand(ECHO), TIMEOUT_MS)
            await client.close()

        run(story())


def test_request_times_out_and_a_late_response_is_ignored(clock) -> None:
    held: list[RequestContext] = []

    async def story() -> None:
        async with serving({1: echo, 2: held.append}) as server:
            client = RemotingClient(clock)
            address = f"127.0.0.1:{server.port}"
            results: list[RemotingCommand | RemotingError] = []
            await client.connect(address)
            client.invoke_callback(address, RemotingCommand(2), 3000, results.append)
            client.invoke_callback(address, RemotingCommand(2), 60_000, results.append)
            await eventually_async(lambda: len(held) == 2)
            clock.advance(2_999)
            client.hub.expire_calls()
            assert results == []
            clock.advance(1)
            client.hub.expire_calls()
            assert [type(result) for result in results] == [TimedOut]
            held[0].reply(RemotingCommand.response())
            held[1].reply(RemotingCommand.response())
            await eventually_async(lambda: len(results) == 2)
            assert isinstance(results[1], RemotingCommand)
            await client.close()

    run(story())


def test_closed_connection_fails_requests_in_flight_and_is_reopened() -> None:
    def close_connection(context: RequestContext) -> None:
        context.connection.close("closed by the handler")

    async def story() -> None:
        async with serving({1: echo, 2: close_connection}) as server:
            client = RemotingClient(SystemClock())
            address = f"127.0.0.1:{server.port}"
            with pytest.raises(Closed):
                await client.invoke(address, RemotingCommand(2), TIMEOUT_MS)
            assert (await client.invoke(address, RemotingCommand(ECHO), TIMEOUT_MS)).code == 0
            await client.close()
            with pytest.raises(Closed):
                await client.invoke(address, RemotingCommand(ECHO), TIMEOUT_MS)

    run(story())


def test_closing_the_client_fails_requests_in_flight() -> None:
    async def story() -> None:
        async with serving({1: never_respond}) as server:
            client = RemotingClient(SystemClock())
            waiting = asyncio.ensure_future(
                client.invoke(f"127.0.0.1:{server.port}", RemotingCommand(1), TIMEOUT_MS)
            )
            await eventually_async(lambda: server.connections)
            await client.close()
            with pytest.raises(Closed):
                await waiting

    run(story())


def test_server_can_send_requests_over_the_client_connection() -> None:
    def send_request_back(context: RequestContext) -> None:
        context.connection.call(
            RemotingCommand(7, {"q": "who"}),
            TIMEOUT_MS,
            lambda response: context.reply(RemotingCommand.response(remark=response.remark)),  # type: ignore[union-attr]
        )

    async def story() -> str | None:
        table = RequestTable()
        table.add(7, lambda context: RemotingCommand.response(remark="me: " + context.command.ext["q"]))
        async with serving({1: send_request_back}) as server:
            client = RemotingClient(SystemClock(), table)
            response = await client.invoke(f"127.0.0.1:{server.port}", RemotingCommand(1), TIMEOUT_MS)
            await client.close()
            return response.remark

    assert run(story()) == "me: who"


def test_exception_in_a_callback_does_not_affect_the_next_request() -> None:
    async def story() -> int:
        async with serving() as server:
            client = RemotingClient(SystemClock())
            address = f"127.0.0.1:{server.port}"

            def bug(result: RemotingCommand | RemotingError) -> None:
                raise ZeroDivisionError

            client.invoke_callback(address, RemotingCommand(ECHO), TIMEOUT_MS, bug)
            response = await client.invoke(address, RemotingCommand(ECHO), TIMEOUT_MS)
            await client.close()
            return response.code

    assert run(story()) == 0


def test_oneway_request_is_sent_after_the_connection_opens() -> None:
    seen: list[str] = []

    def note(context: RequestContext) -> None:
        seen.append(context.command.ext["n"])

    async def story() -> None:
        async with serving({1: note}) as server:
            client = RemotingClient(SystemClock())
            address = f"127.0.0.1:{server.port}"
            client.oneway(address, RemotingCommand(1, {"n": "first"}))
            await eventually_async(lambda: len(seen) == 1)
            client.oneway(address, RemotingCommand(1, {"n": "second"}))
            await eventually_async(lambda: len(seen) == 2)
            await client.close()

    run(story())
    assert seen == ["first", "second"]


def test_parse_address_accepts_ipv4_and_ipv6_and_refuses_other_forms() -> None:
    assert parse_address("host:9876") == ("host", 9876)
    assert parse_address("[::1]:9876") == ("::1", 9876)
    for wrong in ("host", "host:", ":9876", "host:port", "host:99999"):
        with pytest.raises(ConnectFailed):
            parse_address(wrong)

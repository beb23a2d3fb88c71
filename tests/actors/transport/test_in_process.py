"""InProcessConnection: requests run through the chain of the sockets and fail when the server stops."""

from __future__ import annotations

import asyncio

import pytest

from actors.transport.in_process import InProcessConnection
from actors.transport.request import Handler, Observation, RequestContext
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Closed, Refused
from store.common.clock import SystemClock
from tests.actors.transport.remoting_peers import ECHO, LATER, echo, raw_peer, request, run
from tests.eventually import eventually_async

PEER_BYTES = bytes([127, 0, 0, 1, 0, 0, 0, 9])


def table_of(handlers: dict[int, Handler]) -> RequestTable:
    table = RequestTable()
    for code, handler in handlers.items():
        table.add(code, handler)
    return table


def test_in_process_requests_run_through_steps_and_observers() -> None:
    passed: list[str] = []
    observed: list[tuple[int, int]] = []

    def step(context: RequestContext) -> None:
        if "refuse" in context.command.ext:
            raise Refused(ResponseCode.SYSTEM_BUSY, "too much to do")
        passed.append(context.connection.peer)

    def observe(context: RequestContext, observation: Observation) -> None:
        observed.append((context.row.code, observation.status))

    async def story() -> None:
        table = table_of({ECHO: echo})
        server = RemotingServer(table, SystemClock(), steps=(step,), observers=(observe,))
        await server.start("127.0.0.1", 0)
        caller = server.connect_in_process("handle:test", PEER_BYTES)
        async with raw_peer(server) as peer:
            for ext, code, remark in (
                ({"k": "v"}, 0, None),
                ({"refuse": "1"}, ResponseCode.SYSTEM_BUSY, "too much to do"),
            ):
                peer.send(request(ECHO, 1, b"body", **ext))
                by_socket = await peer.read()
                response = await caller.request(RemotingCommand(ECHO, dict(ext), b"body"))
                assert (response.code, response.remark, response.ext) == (
                    by_socket.code, by_socket.remark, by_socket.ext,
                )  # fmt: skip
                assert (response.code, response.remark) == (code, remark)
                assert bytes(response.body) == bytes(by_socket.body)
            unknown = await caller.request(RemotingCommand(77))
        await server.stop()
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert passed[1] == "handle:test" != passed[0]
        assert observed[:4] == [(ECHO, 0)] * 2 + [(ECHO, ResponseCode.SYSTEM_BUSY)] * 2

    run(story())


def test_in_process_requests_are_pending_until_their_response() -> None:
    held: list[RequestContext] = []

    async def story() -> None:
        server = RemotingServer(table_of({LATER: held.append}), SystemClock())  # type: ignore[dict-item]
        await server.start("127.0.0.1", 0)
        caller = server.connect_in_process("handle:test", PEER_BYTES)
        asked = [asyncio.create_task(caller.request(RemotingCommand(LATER))) for _ in range(3)]
        await eventually_async(lambda: len(held) == 3)
        assert (caller.pending, held[0].connection.peer_bytes) == (3, PEER_BYTES)
        asked[2].cancel()
        await asyncio.gather(asked[2], return_exceptions=True)
        shared = RemotingCommand.response(0, None, {"at": "1"}, b"a", parts=[memoryview(b"b"), b"c"])
        for context in reversed(held):
            context.reply(shared)
        shared.ext["at"] = "2"
        for task in asked[:2]:
            response = await task
            assert (response.ext, bytes(response.body)) == ({"at": "1"}, b"abc")
        assert caller.pending == 0
        await server.stop()

    run(story())


def test_stopping_the_server_fails_in_process_requests() -> None:
    held: list[RequestContext] = []

    async def is_refused(caller: InProcessConnection) -> bool:
        with pytest.raises(Closed, match="shutting down"):
            await caller.request(RemotingCommand(LATER))
        return True

    async def story() -> None:
        server = RemotingServer(table_of({LATER: held.append}), SystemClock())  # type: ignore[dict-item]
        await server.start("127.0.0.1", 0)
        caller = server.connect_in_process("handle:test", PEER_BYTES)
        answered, left = (asyncio.create_task(caller.request(RemotingCommand(LATER))) for _ in range(2))
        await eventually_async(lambda: len(held) == 2)
        server.discard_input()
        assert await is_refused(caller)
        held[0].reply(RemotingCommand.response())
        assert (await answered).code == 0
        await server.stop()
        with pytest.raises(Closed, match="shutting down"):
            await left
        assert await is_refused(caller)

    run(story())

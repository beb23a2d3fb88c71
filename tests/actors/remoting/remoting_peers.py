"""What the tests of sockets need: a loop, a server, and a peer that writes raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

from actors.remoting.command import PREFIX, RemotingCommand, decode_command, encode_command
from actors.remoting.limits import RemotingLimits
from actors.remoting.request import Cost, Handler, RequestContext
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from store.clock import Clock, SystemClock
from tests.eventually import LIMIT_S

Result = TypeVar("Result")

ECHO, LATER, FAIL, SILENT, CALL_BACK = 1, 2, 3, 4, 5


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, or fail after ten seconds."""

    async def within() -> Result:
        return await asyncio.wait_for(work, LIMIT_S)

    return uvloop.run(within())


def echo(context: RequestContext) -> RemotingCommand:
    """The request's own fields and body."""
    command = context.command
    return RemotingCommand.response(0, None, dict(command.ext), bytes(command.body))


@asynccontextmanager
async def serving(
    handlers: dict[int, Handler] | None = None,
    *,
    clock: Clock | None = None,
    limits: RemotingLimits | None = None,
    tick: Callable[[], None] | None = None,
    costs: Mapping[int, Cost] | None = None,
) -> AsyncIterator[RemotingServer]:
    """A server on a free port; codes cost what `costs` says, else as an administrator's do."""
    table = RequestTable()
    for code, handler in (handlers or {ECHO: echo}).items():
        table.add(code, handler, cost=(costs or {}).get(code, Cost.ADMIN))
    server = RemotingServer(table, clock or SystemClock(), limits, tick)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


class RawPeer:
    """Writes bytes as they are, reads commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(encode_command(command) for command in commands))

    async def read(self) -> RemotingCommand:
        total, mark = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
        rest = await self.reader.readexactly(total - 4)
        length = mark & 0xFFFFFF
        return decode_command(rest[:length], mark >> 24, rest[length:])

    async def is_closed(self) -> bool:
        """Wait for the other side to close; what it still writes is read away."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def raw_peer(server: RemotingServer) -> AsyncIterator[RawPeer]:
    """A connection to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until this holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


def request(code: int, opaque: int, body: bytes = b"", **ext: str) -> RemotingCommand:
    return RemotingCommand(code, ext, body, opaque=opaque, language="JAVA")

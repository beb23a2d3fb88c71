"""Helpers for tests with sockets: an event loop, a server, and a peer that writes raw bytes."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

from actors.transport.limits import RemotingLimits
from actors.transport.request import Cost, Handler, RequestContext
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.transport.tls.contexts import ServerTls
from actors.wire.command import PREFIX, RemotingCommand, decode_command, encode_command
from store.common.clock import Clock, SystemClock
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually, eventually_async

Result = TypeVar("Result")

ECHO, LATER, FAIL, SILENT, CALL_BACK = 1, 2, 3, 4, 5
TIMEOUT_MS = int(LIMIT_S * 1000)
SOCKET_BUFFER_BYTES = 128 * 1024
"""SO_SNDBUF of a server and SO_RCVBUF of a peer; by default the kernel may buffer tens of MiB."""

TCP_INFO_DATA_SEGS_IN = 152
"""Offset of `tcpi_data_segs_in` in Linux's `struct tcp_info`."""


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on uvloop; fail after LIMIT_S."""

    async def within() -> Result:
        return await asyncio.wait_for(work, LIMIT_S)

    return uvloop.run(within())


def echo(context: RequestContext) -> RemotingCommand:
    """Respond with the header fields and the body of the request."""
    command = context.command
    return RemotingCommand.response(0, None, dict(command.ext), bytes(command.body))


@asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler] | None = None,
    *,
    clock: Clock | None = None,
    limits: RemotingLimits | None = None,
    tick: Callable[[], None] | None = None,
    costs: Mapping[int, Cost] | None = None,
    tls: ServerTls | None = None,
) -> AsyncIterator[RemotingServer]:
    """Run a server on a free port; request codes without an entry in `costs` have cost class ADMIN."""
    table = RequestTable()
    for code, handler in (handlers or {ECHO: echo}).items():
        table.add(code, handler, cost=(costs or {}).get(code, Cost.ADMIN))
    server = RemotingServer(table, clock or SystemClock(), limits, tick, tls=tls)
    await server.start("127.0.0.1", 0)
    for listener in server.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)  # inherited
    try:
        yield server
    finally:
        await server.stop()


class RawPeer:
    """A peer that writes raw bytes and reads commands."""

    def __init__(
        self, server: RemotingServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(encode_command(command) for command in commands))

    async def deliver(self, *commands: RemotingCommand) -> None:
        """Send synchronously, without the event loop; the server's next read gets all commands."""
        await self.deliver_bytes(b"".join(encode_command(command) for command in commands))

    async def deliver_bytes(self, data: bytes) -> None:
        """Send bytes synchronously, without the event loop."""
        name = "{}:{}".format(*self.writer.get_extra_info("sockname"))
        await eventually_async(lambda: any(each.peer == name for each in self._server.connections))
        with self.writer.get_extra_info("socket").dup() as wire:
            wire.sendall(data)
            eventually(lambda: not _unacknowledged_bytes(wire))

    @property
    def segments_received(self) -> int:
        """Number of received TCP segments with data: one per write, if the writes are small."""
        info = self.writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        return int(struct.unpack_from("I", info, TCP_INFO_DATA_SEGS_IN)[0])

    async def read(self) -> RemotingCommand:
        total, mark = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
        rest = await self.reader.readexactly(total - 4)
        length = mark & 0xFFFFFF
        return decode_command(rest[:length], mark >> 24, rest[length:])

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection; discard what it still writes."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def raw_peer(server: RemotingServer) -> AsyncIterator[RawPeer]:
    """Connect to the server."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    wire.connect(
        ("127.0.0.1", server.port)
    )  # the kernel accepts the connection, even while the server does not run
    wire.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=wire)
    try:
        yield RawPeer(server, reader, writer)
    finally:
        writer.close()


def _unacknowledged_bytes(wire: socket.socket) -> int:
    """Return the number of sent bytes that are not yet in the receive buffer of the other side."""
    (count,) = struct.unpack("i", fcntl.ioctl(wire.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(count)


def is_unread_dropped(server: RemotingServer, clock: ClockAtRest) -> bool:
    """Advance the clock by a minute and sweep: connections whose peer read nothing are closed.

    Call it repeatedly, because the kernel may accept some more bytes at first.
    """
    before = server.hub.unread_bytes
    clock.advance(60_000)
    server.hub.sweep()
    assert server.hub.unread_bytes < before
    return not server.hub.unread_bytes


def request(code: int, opaque: int, body: bytes = b"", **ext: str) -> RemotingCommand:
    return RemotingCommand(code, ext, body, opaque=opaque, language="JAVA")

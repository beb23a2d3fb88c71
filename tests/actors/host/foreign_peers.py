"""Peers that are not of the cluster: they forge every response, or pass everything on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from actors.transport.client import RemotingClient
from actors.transport.connection import Connection
from actors.transport.request import RequestContext, RequestRow
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS

PROVE = RayMQRequestCode.PROVE_PEER
Respond = Callable[[RequestContext], RemotingCommand]


def success(context: RequestContext) -> RemotingCommand:
    return RemotingCommand.response()


class Forger:
    """Handles every request with `respond`, and records the codes and bodies."""

    def __init__(self, respond: Respond = success) -> None:
        self.codes: list[int] = []
        self.bodies: list[bytes] = []
        self.on_request: Callable[[Connection], None] = lambda connection: None
        self._respond = respond
        rows = [RequestRow(code, self._handle) for code in (*RequestCode, *RayMQRequestCode)]
        self.server = RemotingServer(RequestTable(rows), SystemClock())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def learned(self) -> set[int]:
        """The codes of the requests that it got besides those for a proof."""
        return set(self.codes) - {PROVE}

    def _handle(self, context: RequestContext) -> RemotingCommand:
        self.codes.append(context.command.code)
        self.bodies.append(bytes(context.command.body))
        self.on_request(context.connection)
        return self._respond(context)


@asynccontextmanager
async def forging(respond: Respond = success) -> AsyncIterator[Forger]:
    """Yield a peer that forges all responses."""
    forger = Forger(respond)
    await forger.server.start("127.0.0.1", 0)
    try:
        yield forger
    finally:
        await forger.server.stop()


@contextmanager
def listed_forger(
    nameserver: str,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    name: str = "AAA",
    respond: Respond = success,
) -> Iterator[Forger]:
    """Yield a forger that a nameserver without access control lists, first or as another broker.

    It has registered topic T. `run` runs coroutines.
    """
    client = RemotingClient(SystemClock())

    async def register() -> Forger:
        forger = Forger(respond)
        await forger.server.start("127.0.0.1", 0)
        ext = RegisterBrokerHeader(name, forger.address, "DefaultCluster", 0).to_ext()
        topic = {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        body = RegisterBrokerBody(topic_configs={"T": topic}).encode()
        await client.ask(nameserver, RemotingCommand(RequestCode.REGISTER_BROKER, ext, body), TIMEOUT_MS)
        return forger

    async def end() -> None:
        await client.close()
        await forger.server.stop()

    forger: Forger = run(register())
    try:
        yield forger
    finally:
        run(end())


class Relay:
    """Passes the bytes of its connections on to another process, and back through `change`."""

    def __init__(self, target: str, change: Callable[[bytes], bytes]) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._change = change
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        back, forth = await asyncio.open_connection(*self._target)
        self._writers += [writer, forth]
        await asyncio.gather(self._pump(reader, forth, bytes), self._pump(back, writer, self._change))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(change(data))
        except OSError:
            pass
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def relaying(
    target: str, change: Callable[[bytes], bytes] = bytes, port: int = 0
) -> AsyncIterator[tuple[str, Relay]]:
    """Yield the address of a relay to the process at `target`, and the relay."""
    relay = Relay(target, change)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", port)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", relay
    finally:
        relay.close()
        server.close()

"""Connections: those of the console's port, which of them wait for a request, and which are late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from actors.bounds import AtLimit, Bound, Use
from actors.ports import NEVER_ASKED_NS, Ports
from store.common.clock import NS_PER_MS
from store.common.logs import get_logger

_log = get_logger(__name__)

CONNECTIONS: Final = Bound(
    "console_connections", 1_000, AtLimit.CLOSE, "Connections of the console; those without a request first."
)
UNREAD_FACTOR = 6
"""A client gets so many times the limit to read a response."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One connection, as a `Guest` of the port."""

    handler: web.RequestHandler
    since_ns: int
    """The time of its begin, or of its last response: since then it owes the head of a request."""
    requests: int = 0
    """Requests that have no response yet."""
    has_asked: bool = False
    is_closed: bool = False

    def idle_ns(self, now_ns: int) -> int | None:
        """Return how long it has waited for a request; None while one is handled."""
        if self.requests or self.is_closed:
            return None
        return now_ns - self.since_ns + (0 if self.has_asked else NEVER_ASKED_NS)

    def give_way(self) -> None:
        """Close it immediately."""
        self.is_closed = True
        if self.handler.transport is not None:
            self.handler.transport.abort()

    def close_if_late(self, now_ns: int, limit_ms: int) -> None:
        """Close it if it does not complete a request, or does not read a response."""
        transport = self.handler.transport
        if self.requests or transport is None:
            return
        is_unread = isinstance(transport, asyncio.Transport) and transport.get_write_buffer_size() > 0
        limit_ms *= UNREAD_FACTOR if is_unread else 1
        if now_ns - self.since_ns > limit_ms * NS_PER_MS:
            peer = transport.get_extra_info("peername")
            _log.info("console_connection_closed", peer=peer, limit_ms=limit_ms, is_unread=is_unread)
            self.handler.force_close()


class Connections:
    """The connections of one console."""

    def __init__(self, ports: Ports, limit_ms: int) -> None:
        self._ports = ports
        self._limit_ms = limit_ms
        self.server: web.Server | None = None
        self._found: dict[web.RequestHandler, _Connection] = {}

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (CONNECTIONS.use(lambda: len(self.guests())),)

    def guests(self) -> Collection[_Connection]:
        """Return the open connections."""
        now_ns, before = self._ports.now_ns(), self._found
        handlers = () if self.server is None else self.server.connections
        self._found = {each: before.get(each) or _Connection(each, now_ns) for each in handlers}
        return self._found.values()

    async def close_late_ones(self) -> None:
        """Close connections that are late, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._limit_ms / 4_000)
            for each in self.guests():
                each.close_if_late(self._ports.now_ns(), self._limit_ms)

    @web.middleware
    async def note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Middleware: note that the connection of a request is in use; its client owes only the body."""
        self.guests()
        connection = self._found[request.protocol]
        connection.requests += 1
        try:
            return await handler(request)
        finally:
            connection.requests -= 1
            connection.has_asked, connection.since_ns = True, self._ports.now_ns()

"""Deadlines: closes connections of the console that do not complete a request, or do not read a response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

_log = get_logger(__name__)

UNREAD_FACTOR = 6
"""A client gets so many times the limit to read a response."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Deadlines:
    """The time since which each connection owes the head of a request: its begin, or its last response."""

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self.limit_ms = limit_ms
        self._since_ns: dict[web.RequestHandler, int] = {}
        self._handling: set[web.RequestHandler] = set()

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: while a request is handled, its client owes nothing but the body."""
        self._handling.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._handling.discard(request.protocol)
            self._since_ns[request.protocol] = self._clock.monotonic_ns()

    async def run(self, connections: Callable[[], Sequence[web.RequestHandler]]) -> None:
        """Close connections that are late, until the task is cancelled."""
        while True:
            await asyncio.sleep(self.limit_ms / 4_000)
            self.sweep(connections())

    def sweep(self, connections: Sequence[web.RequestHandler]) -> None:
        """Close those of the connections that are late."""
        now_ns = self._clock.monotonic_ns()
        self._since_ns = {each: self._since_ns.get(each, now_ns) for each in connections}
        for each, since_ns in self._since_ns.items():
            transport = each.transport
            if each in self._handling or transport is None:
                continue
            is_unread = isinstance(transport, asyncio.Transport) and transport.get_write_buffer_size() > 0
            limit_ms = self.limit_ms * (UNREAD_FACTOR if is_unread else 1)
            if now_ns - since_ns > limit_ms * NS_PER_MS:
                peer = transport.get_extra_info("peername")
                _log.info("console_connection_closed", peer=peer, limit_ms=limit_ms, is_unread=is_unread)
                each.force_close()

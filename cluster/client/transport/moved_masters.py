"""MovedMasters: ends requests to a broker that does not respond and is not the master any more.

A leader that is stopped, or cut off, closes no connection. Its group has another leader within seconds, but
a send that is in flight would wait for its deadline (`delivery_timeout_ms`, one minute). A limit for each
attempt would send everything twice to a master that is merely slow, so the route decides:

    no response for SILENT_MS ──→ refresh the routes ──→ another master: fail the requests, so that they
                                         │               are retried
                                         └─────────────→ the same one: wait
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cluster.client.transport.route_cache import RouteCache
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

CHECK_MS = 500
SILENT_MS = 1_000


class OpenRequests(Protocol):
    """Requests in flight."""

    def unanswered(self, before_ns: int) -> set[str]:
        """Return the addresses with a request that was sent before `before_ns` and has no response yet."""

    def abandon(self, address: str, reason: str) -> None:
        """Fail the requests to an address."""


class MovedMasters:
    """Watches the requests of one client that has no long polls."""

    def __init__(self, routes: RouteCache, nameservers: Callable[[], Sequence[str]], clock: Clock) -> None:
        self._routes = routes
        self._nameservers = nameservers
        self._clock = clock
        self._requests: list[OpenRequests] = []

    def watch(self, requests: OpenRequests) -> None:
        """Watch these requests from now on. May be called in any thread."""
        self._requests.append(requests)

    async def check(self) -> None:
        """Fail the requests to addresses that are silent, and not those of a master any more."""
        before_ns = self._clock.monotonic_ns() - SILENT_MS * NS_PER_MS
        silent = {address for each in self._requests for address in each.unanswered(before_ns)}
        if not silent:
            return
        silent.difference_update(self._nameservers())
        for address in silent:
            await self._routes.refresh_of(address)
        known = filter(None, map(self._routes.peek, self._routes.topics()))
        masters = {route.master(broker) for route in known for broker in route.brokers()}
        if None in masters:
            return  # this one may be the silent one
        for address in silent - masters:
            _log.warning("silent_master_abandoned", address=address)
            for each in self._requests:
                each.abandon(address, "the broker does not respond, and is not the master any more")

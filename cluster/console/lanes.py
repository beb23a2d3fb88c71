"""Lane: threads for one kind of requests, of which a client gets a share.

searches ──► lane of searches   so a page without a search never waits for one
others   ──► lane of pages

a client: [half of the threads run] [CLIENT_WAITING_MAX wait] further ones are refused
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from actors.bounds import AtLimit, Bound
from cluster.console.api_errors import ApiError

T = TypeVar("T")
WAITING: Final = Bound(
    "console_waiting_requests", 1_000, AtLimit.REFUSE, "Requests that run or wait for a thread."
)


@dataclass(slots=True)
class _Share:
    running: asyncio.Semaphore
    requests: int = 0


class RequestLane:
    """Runs blocking work in threads; used on one event loop."""

    def __init__(self, name: str, threads: int, client_waiting_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._client_threads = threads // 2
        self._client_max = self._client_threads + client_waiting_max
        self._shares: dict[str, _Share] = {}
        self.waiting = 0
        """Requests that run or wait for a thread."""

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Run blocking work for a client in one of the threads. Raises ApiError (503) if too much waits."""
        share = self._shares.get(client)
        if share is None:
            share = self._shares[client] = _Share(asyncio.Semaphore(self._client_threads))
        for count, limit in ((share.requests, self._client_max), (self.waiting, WAITING.limit)):
            if count >= limit:
                whose = "of this client " if limit == self._client_max else ""
                text = f"{count} requests {whose}are waiting, over the limit of {limit}"
                raise ApiError(503, text, "Try again in a few seconds.")
        share.requests += 1
        self.waiting += 1
        try:
            async with share.running:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.waiting -= 1
            share.requests -= 1
            if not share.requests:
                del self._shares[client]

    def close(self) -> None:
        """Stop the threads after their present work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

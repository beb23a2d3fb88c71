"""Test of a workload: warm-up, search of the rate, backlog, and the figures of each period."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from cluster.lab.bench.omb.figures import LATENCIES, LatencyHistogram, Period, add_period, add_totals, result
from cluster.lab.bench.omb.rate import SEARCH_STEP_S, RateSearch
from cluster.lab.bench.omb.workload import GIB, Workload
from cluster.lab.bench.options import BenchFailed, Progress

PERIOD_S = 10.0
STALL_TIMEOUT_S = 60.0
POLL_S = 0.02
DRAINED = 1_000
"""Messages that remain in flight while producers send; a backlog of at most so many is drained."""


class LoadClients(Protocol):
    """The producers and consumers of a workload."""

    driver: str
    """Name of the client in the result."""
    period: Period
    """Figures since the last period; the test replaces it."""
    sent: int
    received: int

    async def send(self) -> None:
        """Send messages until cancelled. Raises BenchFailed if the clients have ended."""

    def change_rate(self, rate: float) -> None:
        """Send `rate` messages/s from now on; sends that were due before are dropped."""

    async def pause(self) -> None:
        """Pause all consumers."""

    async def resume(self) -> None:
        """Resume all consumers."""


async def measure(clients: LoadClients, workload: Workload, progress: Progress) -> dict[str, Any]:
    """Run the test of a workload with clients that are started and probed, and return its result.

    Raises BenchFailed if the clients fail.
    """
    senders = asyncio.ensure_future(clients.send())
    test = asyncio.ensure_future(_Test(clients, workload, progress).run())
    try:
        await asyncio.wait((test, senders), return_when=asyncio.FIRST_COMPLETED)
        if senders.done():
            senders.result()  # raises: the senders have no other end
        return await test
    finally:
        test.cancel()
        senders.cancel()
        await asyncio.gather(test, senders, return_exceptions=True)


class _Test:
    """One test; a search of the rate continues until its end."""

    def __init__(self, clients: LoadClients, workload: Workload, progress: Progress) -> None:
        self._clients = clients
        self._workload = workload
        self._progress = progress

    async def run(self) -> dict[str, Any]:
        workload = self._workload
        search = None if workload.producerRate else asyncio.ensure_future(self._search_rate())
        try:
            self._progress("warm-up")
            await asyncio.sleep(workload.warmupDurationMinutes * 60)
            drained_at = await self._build_backlog() if workload.consumerBacklogSizeGB else None
            return await self._measure(drained_at)
        finally:
            if search is not None:
                search.cancel()

    def _backlog(self) -> int:
        clients = self._clients
        return max(clients.sent * self._workload.subscriptionsPerTopic - clients.received, 0)

    async def _search_rate(self) -> None:
        search, clients = RateSearch(), self._clients
        while True:
            sent, backlog, began_s = clients.sent, self._backlog(), time.perf_counter()
            await asyncio.sleep(SEARCH_STEP_S)
            now_s = time.perf_counter()
            clients.change_rate(search.step(now_s - began_s, clients.sent - sent, self._backlog() - backlog))

    async def _build_backlog(self) -> float:
        """Pause the consumers until the backlog is built; return the backlog that counts as drained."""
        clients = self._clients
        wanted = self._workload.consumerBacklogSizeGB * GIB / self._workload.messageSize
        self._progress(f"building a backlog of {wanted:,.0f} messages")
        await clients.pause()
        sent, last_s = clients.sent, time.perf_counter()
        while self._backlog() < wanted:
            await asyncio.sleep(POLL_S)
            if clients.sent > sent:
                sent, last_s = clients.sent, time.perf_counter()
            elif time.perf_counter() - last_s > STALL_TIMEOUT_S:
                raise BenchFailed(f"no message was sent for {STALL_TIMEOUT_S:g} s while building the backlog")
        await clients.resume()
        return wanted * (1 - self._workload.backlogDrainRatio) + DRAINED

    async def _measure(self, drained_at: float | None) -> dict[str, Any]:
        """Measure until the end of the test, and until the backlog is at most `drained_at`."""
        clients = self._clients
        found = result(self._workload, clients.driver)
        totals = {name: LatencyHistogram() for name in LATENCIES}
        clients.period = Period()
        began_s = last_s = time.perf_counter()
        end_s = began_s + self._workload.testDurationMinutes * 60
        while last_s < end_s or (drained_at is not None and self._backlog() > drained_at):
            await asyncio.sleep(min(PERIOD_S, end_s - last_s) if last_s < end_s else PERIOD_S)
            now_s = time.perf_counter()
            period, clients.period = clients.period, Period()
            add_period(found, period, now_s - last_s, self._backlog())
            for name, each in period.latencies.items():
                totals[name].merge(each)
            self._progress(
                f"{now_s - began_s:,.0f} s: {found['publishRate'][-1]:,.0f} sent/s,"
                f" {found['consumeRate'][-1]:,.0f} received/s, backlog {self._backlog():,}"
            )
            last_s = now_s
        add_totals(found, totals)
        return found

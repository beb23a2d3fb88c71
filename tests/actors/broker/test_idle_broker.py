"""An idle broker has few turns and wakes rarely: what can wait runs together, twice per second."""

from __future__ import annotations

import asyncio
import selectors
from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import pytest

from actors.broker import service
from actors.supervisor import Supervisor
from tests.actors.broker.brokers import Peer, serving, settings_of, with_broker

YIELDS = 20
"""Turns of the loop in which a periodic action ends, and the turn of the broker that it has requested."""


class Sleeps:
    """Time in which a supervisor sleeps: it passes only in `pass_time`."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._order = count()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleeping, (self._now_s + delay_s, next(self._order), woken))
        await woken

    async def pass_time(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while self._sleeping and self._sleeping[0][0] <= end_s:
            self._now_s, _, woken = heappop(self._sleeping)
            if not woken.done():
                woken.set_result(None)
            for _ in range(YIELDS):
                await asyncio.sleep(0)
        self._now_s = end_s


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_idle_broker_has_at_most_two_turns_per_second(
    flush: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps, seconds = Sleeps(), 10
    monkeypatch.setattr(service, "Supervisor", partial(Supervisor, sleep=sleeps.sleep))

    async def story(peer: Peer) -> None:
        assert (await peer.send("T")).code == 0
        await sleeps.pass_time(1)  # the first actions create their topics
        turns = peer.broker.describe()["turns"]
        await sleeps.pass_time(seconds)
        assert 0 < peer.broker.describe()["turns"] - turns <= 2 * seconds + 1

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, it advances the time of its loop, and counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.waits = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.now_s += timeout
            self.waits += 1
        return ready


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_loop_of_an_idle_broker_wakes_about_twice_per_second(flush: str, tmp_path: Path) -> None:
    selector, seconds = JumpingSelector(), 20

    def loop_factory() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now_s  # type: ignore[method-assign]
        return loop

    async def pass_time(duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[None] = loop.create_future()
        loop.call_later(duration_s, passed.set_result, None)
        await passed

    async def story() -> None:
        async with serving(settings_of(tmp_path, {"flush": flush})) as peer:
            assert (await peer.send("T")).code == 0
            await pass_time(30)  # it has had nothing to do for a while
            waits = selector.waits
            await pass_time(seconds)
            assert 0 < selector.waits - waits <= 2.5 * seconds

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(story())

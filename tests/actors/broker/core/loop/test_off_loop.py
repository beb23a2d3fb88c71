"""OffLoop: functions run in threads, in order, with limits on their number and waiting time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from actors.broker.core.loop.off_loop import OffLoop
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async


class Gate:
    """Work that blocks until `open`, and records its order."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._open = threading.Event()

    def work(self, number: int) -> Callable[[], int]:
        def wait() -> int:
            self.begun.append(number)
            assert self._open.wait(LIMIT_S)
            return number

        return wait

    def open(self) -> None:
        self._open.set()


def run(story: Callable[[OffLoop, Gate], Awaitable[None]], clock: ClockAtRest, capacity: int = 10) -> None:
    async def with_off_loop() -> None:
        off_loop, gate = OffLoop(clock, 1, capacity, 1_000), Gate()
        try:
            await story(off_loop, gate)
        finally:
            gate.open()
            await off_loop.stop()

    asyncio.run(with_off_loop())


async def start(off_loop: OffLoop, gate: Gate, count: int) -> list[asyncio.Task[int]]:
    """Start `count` pieces of work on one thread, and wait until the first one runs."""
    tasks = [asyncio.create_task(off_loop.run(gate.work(number))) for number in range(count)]
    await eventually_async(lambda: gate.begun == [0] and len(off_loop) == count)
    return tasks


def test_work_runs_in_the_order_of_its_arrival(clock: ClockAtRest) -> None:
    async def story(off_loop: OffLoop, gate: Gate) -> None:
        tasks = await start(off_loop, gate, 5)
        gate.open()
        assert await asyncio.gather(*tasks) == gate.begun == [0, 1, 2, 3, 4]
        assert len(off_loop) == 0

    run(story, clock)


def test_failing_work_fails_its_caller_only(clock: ClockAtRest) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def story(off_loop: OffLoop, gate: Gate) -> None:
        first = await start(off_loop, gate, 1)
        failing = asyncio.create_task(off_loop.run(fail))
        last = asyncio.create_task(off_loop.run(gate.work(2)))
        gate.open()
        with pytest.raises(ZeroDivisionError):
            await failing
        assert [await first[0], await last] == [0, 2]

    run(story, clock)


def test_cancelled_work_releases_its_thread(clock: ClockAtRest) -> None:
    async def story(off_loop: OffLoop, gate: Gate) -> None:
        tasks = await start(off_loop, gate, 3)
        tasks[1].cancel()
        gate.open()
        assert await tasks[2] == 2
        assert len(off_loop) == 0

    run(story, clock)


def test_work_that_waits_too_long_or_at_the_stop_is_refused(clock: ClockAtRest) -> None:
    async def story(off_loop: OffLoop, gate: Gate) -> None:
        tasks = await start(off_loop, gate, 2)
        clock.advance(999)
        off_loop.sweep()
        assert off_loop.longest_wait_ms == 999
        clock.advance(1)
        off_loop.sweep()
        with pytest.raises(Refused, match="period in queue: 1000ms, size of queue: 1") as late:
            await tasks[1]
        assert late.value.code == ResponseCode.SYSTEM_BUSY
        waiting = asyncio.create_task(off_loop.run(gate.work(2)))
        await eventually_async(lambda: len(off_loop) == 2)
        gate.open()
        await off_loop.stop()
        for work in (waiting, off_loop.run(gate.work(3))):
            with pytest.raises(Refused, match="shutting down"):
                await work
        assert await tasks[0] == 0

    run(story, clock)


def test_work_beyond_the_capacity_is_refused(clock: ClockAtRest) -> None:
    async def story(off_loop: OffLoop, gate: Gate) -> None:
        await start(off_loop, gate, 3)
        with pytest.raises(Refused, match=r"2 reads wait for the disk \(pull_queue_capacity 2\)"):
            await off_loop.run(gate.work(3))

    run(story, clock, capacity=2)

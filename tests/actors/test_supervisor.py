"""Supervisor: a failed task is logged, counted and restarted; a stop is not a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
import uvloop

from actors.supervisor import Supervisor
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async


class FakeSleep:
    """A fake sleep that takes no time and records the requested durations."""

    def __init__(self) -> None:
        self.durations_slept_ms: list[int] = []

    async def __call__(self, delay_s: float) -> None:
        self.durations_slept_ms.append(round(delay_s * 1000))
        await asyncio.sleep(0)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(story(), LIMIT_S)

    uvloop.run(within())


def test_failing_task_restarts_with_exponential_backoff(clock: ClockAtRest) -> None:
    sleep, failures = FakeSleep(), [ValueError("bad")] * 9

    async def work() -> None:
        if failures:
            raise failures.pop()

    async def story() -> None:
        supervisor = Supervisor(clock, sleep=sleep)
        await supervisor.start("work", work)
        assert supervisor.failures == 9

    run(story)
    assert sleep.durations_slept_ms == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]


def test_a_failure_is_logged_with_task_owner_and_traceback(clock: ClockAtRest) -> None:
    failures = [ValueError("bad")]

    async def work() -> None:
        if failures:
            raise failures.pop()

    async def story() -> None:
        await Supervisor(clock, sleep=FakeSleep(), broker="broker-a").start("work", work)

    with structlog.testing.capture_logs() as logs:
        run(story)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("background_task_failed", "error")
    assert (line["task"], line["broker"], line["failures"], line["exc_info"]) == ("work", "broker-a", 1, True)


def test_backoff_resets_after_a_long_run(clock: ClockAtRest) -> None:
    sleep, durations_ms = FakeSleep(), [0, 0, 9_999, 10_000, 0]

    async def work() -> None:
        if durations_ms:
            clock.advance(durations_ms.pop(0))
            raise ValueError

    async def story() -> None:
        await Supervisor(clock, sleep=sleep).start("work", work)

    run(story)
    assert sleep.durations_slept_ms == [100, 200, 400, 100, 200]


def test_a_periodic_action_is_called_again_after_it_raised(clock: ClockAtRest) -> None:
    sleep, calls = FakeSleep(), 0

    async def act() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError

    async def story() -> None:
        supervisor = Supervisor(clock, sleep=sleep)
        supervisor.every("act", lambda: 7 + calls, act)
        await eventually_async(lambda: calls == 3)
        await supervisor.stop()
        assert supervisor.failures == 1

    run(story)
    assert sleep.durations_slept_ms[:4] == [7, 8, 100, 9]


def test_task_is_abandoned_after_ten_failures_in_a_row(clock: ClockAtRest) -> None:
    sleep, runs, reasons = FakeSleep(), 0, []

    async def work() -> None:
        nonlocal runs
        runs += 1
        raise ValueError(f"bad {runs}")

    async def story() -> None:
        await Supervisor(clock, reasons.append, sleep=sleep).start("work", work)

    run(story)
    assert reasons == ["task work failed 10 times in a row, last with ValueError: bad 10"]
    assert (runs, len(sleep.durations_slept_ms)) == (10, 9)


def test_success_resets_the_failure_count(clock: ClockAtRest) -> None:
    sleep, calls, reasons = FakeSleep(), 0, []

    def act() -> None:
        nonlocal calls
        calls += 1
        clock.advance(10_000)  # a long run does not reset the count of a periodic action
        if calls not in (10, 20):
            raise ValueError

    async def story() -> None:
        await Supervisor(clock, reasons.append, sleep=sleep).every("act", lambda: 0, act)

    run(story)
    assert (calls, len(reasons)) == (30, 1)


def test_long_running_task_is_not_abandoned(clock: ClockAtRest) -> None:
    runs, reasons = 0, []

    async def work() -> None:
        nonlocal runs
        runs += 1
        clock.advance(10_000)
        if runs <= 30:
            raise ValueError

    async def story() -> None:
        await Supervisor(clock, reasons.append, sleep=FakeSleep()).start("work", work)

    run(story)
    assert (runs, reasons) == (31, [])


def test_failing_task_does_not_affect_others(clock: ClockAtRest) -> None:
    calls = 0

    def fail() -> None:
        raise ValueError

    def count() -> None:
        nonlocal calls
        calls += 1

    async def story() -> None:
        supervisor = Supervisor(clock, sleep=FakeSleep())
        supervisor.every("fail", lambda: 1, fail)
        supervisor.every("count", lambda: 1, count)
        await eventually_async(lambda: calls > 9 and supervisor.failures > 3)
        await supervisor.stop()

    run(story)


def test_stop_waits_for_tasks_and_counts_no_failure(clock: ClockAtRest) -> None:
    released: list[str] = []

    async def hold(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            released.append(name)

    async def story() -> None:
        supervisor = Supervisor(clock)
        tasks = [supervisor.start(name, lambda name=name: hold(name)) for name in ("a", "b")]
        await asyncio.sleep(0)
        await supervisor.stop()
        assert sorted(released) == ["a", "b"]
        assert [task.cancelled() for task in tasks] == [True, True]
        assert supervisor.failures == 0
        await supervisor.stop()

    run(story)


def test_a_stop_during_the_backoff_ends_the_task(clock: ClockAtRest) -> None:
    async def story() -> None:
        is_waiting = asyncio.Event()

        async def wait(_delay_s: float) -> None:
            is_waiting.set()
            await asyncio.Event().wait()

        def fail() -> None:
            raise ValueError

        async def work() -> None:
            fail()

        supervisor = Supervisor(clock, sleep=wait)
        task = supervisor.start("work", work)
        await is_waiting.wait()
        await supervisor.stop()
        assert task.cancelled()
        assert supervisor.failures == 1

    run(story)


def test_an_error_while_stopping_is_counted_and_not_restarted(clock: ClockAtRest) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    async def story() -> None:
        supervisor = Supervisor(clock, sleep=FakeSleep())
        task = supervisor.start("work", work)
        await asyncio.sleep(0)
        await supervisor.stop()
        assert task.done()
        assert supervisor.failures == 1

    run(story)


def test_a_cancelled_future_that_a_task_awaits_is_a_failure(clock: ClockAtRest) -> None:
    """Otherwise a cancelled future would end the task silently."""
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            waited_for = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for

    async def story() -> None:
        supervisor = Supervisor(clock, sleep=FakeSleep())
        await supervisor.start("work", work)
        assert (runs, supervisor.failures) == (2, 1)

    run(story)

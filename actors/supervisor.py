"""Supervisor: runs the background tasks of a service or client, and restarts tasks that fail.

    RUNNING ──raises──> logged, counted ──back-off──> RUNNING
       │                      └──MAX_FAILURES_IN_A_ROW──> abandoned: `give_up` stops the service
       ├──returns─────> finished
       └──cancelled───> finished

The back-off doubles from FIRST_BACKOFF_MS to MAX_BACKOFF_MS. The count of failures in a row is reset when a
task has run for MAX_BACKOFF_MS, or a periodic action has succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from actors import beat
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

FIRST_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 10_000
MAX_FAILURES_IN_A_ROW: Final = 10

GiveUp = Callable[[str], None]
"""Called with the reason if a task fails permanently; stops the service."""


@dataclass
class _FailureStreak:
    """The failures in a row of one task."""

    failures: int = 0

    @property
    def backoff_ms(self) -> int:
        return min(FIRST_BACKOFF_MS << (self.failures - 1), MAX_BACKOFF_MS)


class Supervisor:
    """Starts background tasks on the running loop, restarts those that fail, and cancels all in `stop`."""

    def __init__(
        self,
        clock: Clock,
        give_up: GiveUp | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = beat.sleep,
        **owner: str,
    ) -> None:
        """Create a supervisor without tasks.

        Args:
            clock: measures how long a task ran before it failed.
            give_up: called if a task has failed MAX_FAILURES_IN_A_ROW times; if None, a failing task is
                always restarted.
            sleep: waits between periods and before restarts.
            owner: fields added to every log event.
        """
        self.failures = 0
        """Number of exceptions raised by all tasks."""
        self._clock = clock
        self._give_up = give_up
        self._sleep = sleep
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work()` in a task until it returns or the task is cancelled; restart it after an exception."""

        async def run(streak: _FailureStreak) -> None:
            started_ns = self._clock.monotonic_ns()
            try:
                await work()
            finally:
                if self._clock.monotonic_ns() - started_ns >= MAX_BACKOFF_MS * NS_PER_MS:
                    streak.failures = 0

        return self._start(name, run)

    def every(
        self, name: str, interval_ms: Callable[[], int], act: Callable[[], Awaitable[None] | None]
    ) -> asyncio.Task[None]:
        """Call `act` periodically in a task; `interval_ms()` gives the time before each call."""

        async def repeat(streak: _FailureStreak) -> None:
            while True:
                await self._sleep(interval_ms() / 1000)
                pending = act()
                if pending is not None:
                    await pending
                streak.failures = 0

        return self._start(name, repeat)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have finished."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(
        self, name: str, run: Callable[[_FailureStreak], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._supervise(name, run), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, name: str, run: Callable[[_FailureStreak], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        streak = _FailureStreak()
        while True:
            try:
                await run(streak)
            except (Exception, asyncio.CancelledError) as error:
                is_cancelled = task.cancelling() > 0
                # If this task was not cancelled, something that it awaited was: that is a failure.
                if is_cancelled and isinstance(error, asyncio.CancelledError):
                    raise
                self.failures += 1
                streak.failures += 1
                _log.exception("background_task_failed", task=name, failures=self.failures, **self._owner)
                if is_cancelled:
                    return
                if streak.failures >= MAX_FAILURES_IN_A_ROW and self._give_up is not None:
                    cause = f"{type(error).__name__}: {error}"
                    self._give_up(f"task {name} failed {streak.failures} times in a row, last with {cause}")
                    return
            else:
                return
            await self._sleep(streak.backoff_ms / 1000)

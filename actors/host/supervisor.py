"""Supervisor: the background tasks of one service or client; a task that raises is logged and restarted.

    RUNNING ──raises──> logged, counted ──back-off──> RUNNING
       │                      └──MAX_FAILURES_IN_A_ROW──> given up: the service stops with the reason
       ├──returns─────> finished
       └──cancelled───> finished

The back-off doubles from FIRST_BACKOFF_MS to MAX_BACKOFF_MS. A row of failures ends when a task has run for
MAX_BACKOFF_MS, or a periodic action has succeeded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

_log = get_logger(__name__)

FIRST_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 10_000
MAX_FAILURES_IN_A_ROW: Final = 10

GiveUp = Callable[[str], None]
"""Stops the service that a failing task belongs to; receives the reason."""


@dataclass
class _Row:
    """The failures of one task since it last succeeded."""

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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        **owner: str,
    ) -> None:
        """Make a supervisor without tasks.

        Args:
            clock: Measures how long a task ran before it failed.
            give_up: Called when a task has failed MAX_FAILURES_IN_A_ROW times; without it a failing task is
                restarted for ever.
            sleep: Waits between periods and before restarts.
            owner: Added to every log event.
        """
        self.failures = 0
        """How often a task has raised."""
        self._clock = clock
        self._give_up = give_up
        self._sleep = sleep
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work()` in a task until it returns or the task is cancelled."""

        async def run(row: _Row) -> None:
            started_ns = self._clock.monotonic_ns()
            try:
                await work()
            finally:
                if self._clock.monotonic_ns() - started_ns >= MAX_BACKOFF_MS * NS_PER_MS:
                    row.failures = 0

        return self._start(name, run)

    def every(
        self, name: str, interval_ms: Callable[[], int], act: Callable[[], Awaitable[None] | None]
    ) -> asyncio.Task[None]:
        """Call `act` in a task, `interval_ms()` after the start and after each call."""

        async def repeat(row: _Row) -> None:
            while True:
                await self._sleep(interval_ms() / 1000)
                pending = act()
                if pending is not None:
                    await pending
                row.failures = 0

        return self._start(name, repeat)

    async def stop(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str, run: Callable[[_Row], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._supervise(name, run), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, name: str, run: Callable[[_Row], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        row = _Row()
        while True:
            try:
                await run(row)
            except (Exception, asyncio.CancelledError) as error:
                is_cancelled = task.cancelling() > 0
                # Without a cancellation of this task it comes from what the task waited for: a failure.
                if is_cancelled and isinstance(error, asyncio.CancelledError):
                    raise
                self.failures += 1
                row.failures += 1
                _log.exception("background_task_failed", task=name, failures=self.failures, **self._owner)
                if is_cancelled:
                    return
                if row.failures >= MAX_FAILURES_IN_A_ROW and self._give_up is not None:
                    cause = f"{type(error).__name__}: {error}"
                    self._give_up(f"task {name} failed {row.failures} times in a row, last with {cause}")
                    return
            else:
                return
            await self._sleep(row.backoff_ms / 1000)

"""Supervisor: the background tasks of one service or client; a task that raises is logged and restarted.

    RUNNING ──raises──> logged, counted ──back-off──> RUNNING
       ├──returns─────> finished
       └──cancelled───> finished

The back-off doubles from FIRST_BACKOFF_MS to MAX_BACKOFF_MS; a task that ran for MAX_BACKOFF_MS before it
failed starts again from the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

_log = get_logger(__name__)

FIRST_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 10_000


class Supervisor:
    """Starts background tasks on the running loop, restarts those that fail, and cancels all in `stop`."""

    def __init__(
        self, clock: Clock, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, **owner: str
    ) -> None:
        """`sleep` waits between periods and before restarts; `owner` is added to every log event."""
        self.failures = 0
        """How often a task has raised."""
        self._clock = clock
        self._sleep = sleep
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work()` in a task until it returns or the task is cancelled."""
        task = asyncio.get_running_loop().create_task(self._run(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def every(
        self, name: str, interval_ms: Callable[[], int], act: Callable[[], Awaitable[None] | None]
    ) -> asyncio.Task[None]:
        """Call `act` in a task, `interval_ms()` after the start and after each call."""

        async def repeat() -> None:
            while True:
                await self._sleep(interval_ms() / 1000)
                pending = act()
                if pending is not None:
                    await pending

        return self.start(name, repeat)

    async def stop(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        backoff_ms = FIRST_BACKOFF_MS
        while True:
            started_ns = self._clock.monotonic_ns()
            try:
                await work()
            except (Exception, asyncio.CancelledError) as error:
                is_cancelled = task.cancelling() > 0
                # Without a cancellation of this task it comes from what the task waited for: a failure.
                if is_cancelled and isinstance(error, asyncio.CancelledError):
                    raise
                self.failures += 1
                _log.exception("background_task_failed", task=name, failures=self.failures, **self._owner)
                if is_cancelled:
                    return
            else:
                return
            if self._clock.monotonic_ns() - started_ns >= MAX_BACKOFF_MS * NS_PER_MS:
                backoff_ms = FIRST_BACKOFF_MS
            await self._sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)

"""TimerSaving: saves the progress of the timer when the CommitLog is flushed and confirmed up to it.

    note(progress)  ──(CommitLog flushed, confirmed)──►  flush wheel and log  ──►  write timercheck

Otherwise, after a power failure or a truncation, the progress could include deliveries that the CommitLog has
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from actors.broker.features.timer.timer_counts import TimerCounts
from store.common.clock import Clock
from store.message_store import MessageStore
from store.store_errors import StoreError
from store.timer.timer_files import TimerFiles, TimerProgress

FLUSH_POLL_S = 0.005
SAVES_PER_METRICS = 10


class TimerSaving:
    """Saves the files of one timer, in threads, one call at a time."""

    def __init__(self, files: TimerFiles, store: MessageStore, counts: TimerCounts, clock: Clock) -> None:
        self._files = files
        self._store = store
        self._counts = counts
        self._clock = clock
        # Progress that may be saved when the CommitLog is flushed and confirmed up to the last number.
        self._unsaved: tuple[TimerProgress, int, int] | None = None
        self._noted: tuple[int, int, int] | None = None
        self._saves = 0
        self._in_use = asyncio.Lock()

    async def in_thread(self, call: Callable[[], None]) -> None:
        """Call a function that changes the files in a thread; it completes also if this task is cancelled."""

        async def run() -> None:
            async with self._in_use:
                await asyncio.to_thread(call)

        await asyncio.shield(run())

    async def save(self, progress: TimerProgress, delivered_second: int) -> None:
        """Note the progress, and save the one that was noted before if it is flushed and confirmed.

        Args:
            progress: the present progress.
            delivered_second: the last second with a delivery; an idle timer is saved once after it.
        """
        if self._unsaved is not None and self._is_safe(self._unsaved[2]):
            noted, log_end, _ = self._unsaved
            self._unsaved = None
            await self._save(noted, log_end)
            self._files.delete_before(self._store.positions.min)
        read_second = min(progress.read_second, delivered_second + 1)
        changes = (self._files.end, self._counts.dequeued, read_second)
        if self._unsaved is None and changes != self._noted:
            self._noted = changes
            self._unsaved = (progress, self._files.end, self._store.positions.written)

    async def save_now(self, progress: TimerProgress) -> None:
        """Save the progress; `flush_store` has returned True. Raises OSError."""
        self._saves = SAVES_PER_METRICS - 1
        await self._save(progress, self._files.end)

    def forget(self) -> None:
        """Forget the progress that was noted, because the timer is stopped and the log may be truncated."""
        self._unsaved = self._noted = None

    def _is_safe(self, written: int) -> bool:
        """Return True if no record before the CommitLog offset `written` can be lost."""
        return written <= min(self._store.positions.flushed, self._store.positions.confirmed)

    async def _save(self, progress: TimerProgress, log_end: int) -> None:
        await self.in_thread(partial(self._files.save, progress, log_end, self._clock.wall_ms()))
        self._saves += 1
        if self._saves % SAVES_PER_METRICS == 0:
            await self.in_thread(self._counts.saving())

    async def flush_store(self) -> bool:
        """Flush the CommitLog; return True if no record can be lost any more. Raises StoreError, OSError."""
        store, written = self._store, self._store.positions.written
        while store.positions.flushed < written:
            job = store.flush_job()
            if job is None:  # the broker's own flush is under way
                if store.write_refusal is not None:
                    raise StoreError(store.write_refusal, store.root)
                await asyncio.sleep(FLUSH_POLL_S)
                continue
            try:
                await asyncio.to_thread(job.run)
            except OSError as error:
                store.flush_failed(job, error)
                raise
            store.flush_done(job)
        store.confirm()
        return self._is_safe(written)

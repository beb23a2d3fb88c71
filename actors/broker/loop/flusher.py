"""The flusher: makes what is written durable, off the loop, one fdatasync at a time.

Group commit with a window that sizes itself: while one flush runs, senders gather behind it; the moment it
ends the next one starts for all of them. A fast disk thus gives small groups and short waits, a slow one
large groups. Under async flush nobody waits, and a timer starts a flush every `flush_interval_ms` when
something is dirty.

A flush that fails is final (the kernel may have marked the lost pages clean): the store turns read-only with
the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from store.clock import Clock
from store.commitlog.flush import FlushJob
from store.jobs import Jobs
from store.logs import get_logger

_log = get_logger(__name__)


class FlushableStore(Protocol):
    """The face of `MessageStore` that the flusher needs."""

    def flush_job(self) -> FlushJob | None:
        """Give what is to be flushed now, if anything."""

    def flush_done(self, job: FlushJob) -> None:
        """Move the flushed position."""

    def flush_failed(self, job: FlushJob, error: Exception) -> None:
        """Turn the store read-only."""


class Flusher:
    """Runs the flush jobs of one store in a thread of its own; all else happens on the owner's loop."""

    def __init__(
        self,
        store: FlushableStore,
        clock: Clock,
        on_progress: Callable[[], None],
        *,
        flushes_each_tick: bool,
        flush_interval_ms: int,
    ) -> None:
        """Call `on_progress` on the loop after each flush, so that it answers those who waited.

        `flushes_each_tick`: start a flush whenever `poke` finds something dirty (sync), else by the timer
        (async).
        """
        self._store = store
        self._clock = clock
        self._on_progress = on_progress
        self._flushes_each_tick = flushes_each_tick
        self._interval_ms = flush_interval_ms
        self._jobs = Jobs()
        self._lane = self._jobs.lane("flusher")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._took_ns = 0  # of the last flush
        self.flushes = 0
        self.longest_flush_ns = 0

    def start(self) -> None:
        """Start the timer under async flush. Call on the loop that owns the store."""
        loop = self._loop = asyncio.get_running_loop()
        self._jobs.on_job_done(partial(loop.call_soon_threadsafe, self._jobs.collect))
        if not self._flushes_each_tick:
            self._arm_timer()

    def poke(self) -> None:
        """Start a flush if senders wait for one and none is in flight; call at the end of a turn."""
        if self._flushes_each_tick and self._idle.is_set():
            self._start_flush()

    async def stop(self) -> None:
        """Wait for the flush in flight and end the thread; what is dirty after that is flushed by the store's
        close.
        """
        if self._timer is not None:
            self._timer.cancel()
        await self._idle.wait()
        self._jobs.close()

    def _start_flush(self) -> None:
        job = self._store.flush_job()
        if job is not None:
            self._idle.clear()
            self._lane.submit(partial(self._run, job), partial(self._done, job))

    def _arm_timer(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(self._interval_ms / 1000, self._timed_flush)

    def _timed_flush(self) -> None:
        self._arm_timer()  # first: a flush that cannot be started must not be the last one
        if self._idle.is_set():
            self._start_flush()

    def _run(self, job: FlushJob) -> None:
        """Run on the lane's thread."""
        began_ns = self._clock.monotonic_ns()
        try:
            job.run()
        finally:
            self._took_ns = self._clock.monotonic_ns() - began_ns

    def _done(self, job: FlushJob, error: Exception | None) -> None:
        self._idle.set()
        self.flushes += 1
        self.longest_flush_ns = max(self.longest_flush_ns, self._took_ns)
        if error is None:
            self._store.flush_done(job)
        else:
            _log.error("flush_failed", error=str(error), errno=getattr(error, "errno", None))
            self._store.flush_failed(job, error)
        self._on_progress()

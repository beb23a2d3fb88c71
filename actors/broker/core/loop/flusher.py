"""Flusher: flushes the store in a thread, one fdatasync at a time.

Sync flush is a group commit: all sends that arrive during one flush share the next one, which starts as soon
as the first has finished. The size of a group therefore follows the speed of the disk. Under async flush no
send waits for the disk; a timer starts a flush every `flush_interval_ms` if there are dirty pages.

A failed flush is not retried, because the kernel may have marked the lost pages clean: the store becomes
read-only, with the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from actors.beat import on_beat_s
from actors.broker.core.loop.flush_thread import FlushThread
from store.commitlog.flush import FlushJob
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)

BRIEF_NS = 1_000_000
"""A flush of less than this time is worth blocking the loop."""


class Flusher:
    """Runs the flush jobs of one store in a thread; all other code runs on the loop that owns the store."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        on_progress: Callable[[], None],
        *,
        flushes_each_tick: bool,
        flush_interval_ms: int,
    ) -> None:
        """Create the flusher.

        Args:
            store: the store to flush.
            clock: measures the duration of flushes.
            on_progress: called on the loop after each flush; requests a turn, which sends the responses.
            flushes_each_tick: True (sync flush): `flush_if_idle` starts flushes; False (async): a timer does.
            flush_interval_ms: the period of that timer.
        """
        self._store = store
        self._clock = clock
        self._on_progress = on_progress
        self._flushes_each_tick = flushes_each_tick
        self._interval_ms = flush_interval_ms
        self._thread = FlushThread(self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight: FlushJob | None = None
        self._is_awaited = False
        self._took_ns = 0  # duration of the last flush
        self.flushes = 0
        self.longest_flush_ns = 0

    def start(self) -> None:
        """Start the timer, under async flush. To be called on the loop that owns the store."""
        loop = self._loop = asyncio.get_running_loop()
        loop.call_soon(self._collect)  # a flush that has ended before had no loop to wake
        if not self._flushes_each_tick:
            self._arm_timer()

    @property
    def is_flushing(self) -> bool:
        """True if a flush is in flight, whose end requests a turn."""
        return self._in_flight is not None

    def flush_if_idle(self) -> None:
        """Under sync flush, start a flush if there is dirty data and no flush in flight.

        To be called at the end of a turn.
        """
        if self._flushes_each_tick and self._idle.is_set():
            self._start_flush()

    def await_flush(self, limit_ns: int = BRIEF_NS) -> None:
        """Wait up to `limit_ns` for the flush in flight, unless the last one took longer.

        For a loop that has nothing else to do: it continues in the same turn, and need not be woken.
        """
        if self._in_flight is None or self._took_ns >= limit_ns:
            return
        self._is_awaited = True
        has_ended = self._thread.has_ended(limit_ns / 1e9)
        self._is_awaited = False
        if has_ended or self._thread.has_ended():  # after the last line the thread wakes the loop
            self._done()

    async def stop(self) -> None:
        """Wait for the flush in flight and end the thread. The store flushes the rest when it is closed."""
        if self._timer is not None:
            self._timer.cancel()
        await self._idle.wait()
        self._thread.stop()

    def _start_flush(self) -> None:
        job = self._store.flush_job()
        if job is not None:
            self._idle.clear()
            self._in_flight = job
            self._thread.begin(partial(self._run, job))

    def _arm_timer(self) -> None:
        assert self._loop is not None
        delay_s = on_beat_s(self._interval_ms / 1000, self._loop.time())
        self._timer = self._loop.call_later(delay_s, self._timed_flush)

    def _timed_flush(self) -> None:
        self._arm_timer()  # first, so that an error below does not end the timer
        if self._idle.is_set():
            self._start_flush()

    def _run(self, job: FlushJob) -> None:
        """Flush; runs on the flusher's thread."""
        began_ns = self._clock.monotonic_ns()
        try:
            job.run()
        finally:
            self._took_ns = self._clock.monotonic_ns() - began_ns

    def _wake(self) -> None:
        """Let the loop handle the end of a flush; runs on the flusher's thread."""
        loop = self._loop
        if loop is not None and not self._is_awaited:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        if self._thread.has_ended():
            self._done()
            self._on_progress()

    def _done(self) -> None:
        job, error = self._in_flight, self._thread.error
        assert job is not None
        self._in_flight = None
        self._idle.set()
        self.flushes += 1
        self.longest_flush_ns = max(self.longest_flush_ns, self._took_ns)
        if error is None:
            self._store.flush_done(job)
        else:
            _log.error("flush_failed", error=str(error), errno=getattr(error, "errno", None))
            self._store.flush_failed(job, error)

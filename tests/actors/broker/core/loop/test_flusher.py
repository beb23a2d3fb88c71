"""Flusher: one flush at a time, the next one for all sends that wait; a failed flush is final."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from actors.broker.core.loop.flusher import Flusher
from store.commitlog.flush import FlushJob
from store.common.clock import SystemClock
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import run
from tests.eventually import LIMIT_S, eventually_async


class ControlledJob:
    """A flush that runs until the test sets `may_end`."""

    def __init__(self, error: OSError | None = None) -> None:
        self.may_end = threading.Event()
        self._error = error
        self.has_ended = False

    def run(self) -> None:
        assert self.may_end.wait(LIMIT_S)
        if self._error is not None:
            raise self._error
        self.has_ended = True


class FakeStore:
    def __init__(self) -> None:
        self.dirty: list[ControlledJob] = []
        self.jobs_requested = 0
        self.done: list[object] = []
        self.failed: list[OSError] = []

    def flush_job(self) -> FlushJob | None:
        self.jobs_requested += 1
        return cast("FlushJob", self.dirty.pop(0)) if self.dirty else None

    def flush_done(self, job: FlushJob) -> None:
        self.done.append(job)

    def flush_failed(self, job: FlushJob, error: OSError) -> None:
        self.failed.append(error)


def with_flusher(
    story: Callable[[FakeStore, Flusher, asyncio.Queue[None]], Awaitable[None]],
    *,
    sync: bool,
    interval_ms: int = 1,
) -> None:
    async def scenario() -> None:
        store, progress = FakeStore(), asyncio.Queue[None]()
        flusher = Flusher(
            store,
            SystemClock(),
            lambda: progress.put_nowait(None),
            flushes_each_tick=sync,
            flush_interval_ms=1,
        )
        flusher.start()
        await story(store, flusher, progress)
        await flusher.stop()

    run(scenario)


def test_sends_during_a_flush_share_the_next_one() -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        first, second = ControlledJob(), ControlledJob()
        store.dirty = [first]
        flusher.flush_if_idle()
        assert store.jobs_requested == 1
        store.dirty = [second]
        flusher.flush_if_idle()
        flusher.flush_if_idle()
        assert store.jobs_requested == 1
        first.may_end.set()
        await progress.get()
        assert store.done == [first]
        flusher.flush_if_idle()
        second.may_end.set()
        await progress.get()
        assert store.done == [first, second]
        assert flusher.flushes == 2
        flusher.flush_if_idle()
        flusher.flush_if_idle()
        assert store.jobs_requested == 4  # without dirty data, a call leaves no flush in flight

    with_flusher(story, sync=True)


def test_flush_that_ends_before_the_flusher_starts_is_collected() -> None:
    """A client that reconnects while its broker starts may send before `start`."""

    async def scenario() -> None:
        store, progress = FakeStore(), asyncio.Queue[None]()
        on_progress = partial(progress.put_nowait, None)
        flusher = Flusher(store, SystemClock(), on_progress, flushes_each_tick=True, flush_interval_ms=1)
        job = ControlledJob()
        job.may_end.set()
        store.dirty = [job]
        flusher.flush_if_idle()
        await eventually_async(lambda: job.has_ended, "the flush")
        flusher.start()
        await progress.get()
        assert store.done == [job]
        await flusher.stop()

    run(scenario)


def test_async_flush_is_started_by_the_timer_only() -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        job = ControlledJob()
        job.may_end.set()
        store.dirty = [job]
        flusher.flush_if_idle()
        assert store.jobs_requested == 0
        await progress.get()
        assert store.done == [job]

    with_flusher(story, sync=False)


def test_flush_timer_continues_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        def fail() -> None:
            monkeypatch.undo()
            raise ZeroDivisionError

        job = ControlledJob()
        job.may_end.set()
        store.dirty = [job]
        monkeypatch.setattr(store, "flush_job", fail)
        await progress.get()
        assert store.done == [job]

    with_flusher(story, sync=False)


def test_failed_flush_is_reported_to_the_store() -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        job = ControlledJob(OSError(5, "Input/output error"))
        job.may_end.set()
        store.dirty = [job]
        flusher.flush_if_idle()
        await progress.get()
        assert [str(error) for error in store.failed] == ["[Errno 5] Input/output error"]
        assert store.done == []

    with_flusher(story, sync=True)


def test_stop_waits_for_the_flush_in_flight() -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        job = ControlledJob()
        store.dirty = [job]
        flusher.flush_if_idle()
        stopping = asyncio.create_task(flusher.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        job.may_end.set()
        await stopping
        assert store.done == [job]

    with_flusher(story, sync=True)


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), ZeroDivisionError("a bug")])
def test_any_exception_of_a_flush_fails_the_store(tmp_path: Path, fault: Exception) -> None:
    async def story() -> None:
        identity = StoreIdentity("C", "b", 0)
        store = MessageStore.open(tmp_path, StoreSettings(flush="sync"), identity, SystemClock())
        progress, errors = asyncio.Event(), []
        flusher = Flusher(store, SystemClock(), progress.set, flushes_each_tick=True, flush_interval_ms=1)
        flusher.start()
        result = store.append(RecordDraft("T", 0, b"body", b""))
        store.on_confirmed(result.physical_offset + result.size_bytes, errors.append)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(FlushJob, "run", lambda _: (_ for _ in ()).throw(fault))
            flusher.flush_if_idle()
            await progress.wait()
        assert "restart the broker to recover" in str(errors[0])
        assert "restart the broker to recover" in (store.write_refusal or "")
        await flusher.stop()
        store.close()

    run(story)


def test_awaited_flush_is_handled_in_the_same_turn() -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        job = ControlledJob()
        job.may_end.set()
        store.dirty.append(job)
        flusher.flush_if_idle()
        flusher.await_flush(round(LIMIT_S * 1e9))
        assert store.done == [job]
        assert progress.empty()
        flusher.await_flush()  # without one in flight

    with_flusher(story, sync=True)


def test_flush_that_takes_long_is_not_awaited_to_its_end() -> None:
    async def story(store: FakeStore, flusher: Flusher, progress: asyncio.Queue[None]) -> None:
        job = ControlledJob()
        store.dirty.append(job)
        flusher.flush_if_idle()
        flusher.await_flush()
        assert not store.done
        job.may_end.set()
        await asyncio.wait_for(progress.get(), LIMIT_S)
        assert store.done == [job]

    with_flusher(story, sync=True)

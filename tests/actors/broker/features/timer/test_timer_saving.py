"""The timer's progress is saved only when the deliveries in it can no longer be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from actors.broker.features.timer.timer_counts import TimerCounts
from actors.broker.features.timer.timer_saving import TimerSaving
from store.commitlog.positions import Positions
from store.message_store import MessageStore
from store.store_settings import StoreSettings
from store.timer.timer_files import TimerFiles, TimerProgress
from tests.conftest import ClockAtRest
from tests.store.conftest import OWNER, SMALL, a_draft

PROGRESS = TimerProgress(7, 1_700_000_000)


class Reported:
    """Confirms the position that replica 1 reported."""

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        return replicas.get(1, 0)


@pytest.fixture
def store(tmp_path: Path, clock: ClockAtRest) -> Iterator[MessageStore]:
    store = MessageStore.open(tmp_path / "store", StoreSettings(**SMALL), OWNER, clock, confirm=Reported())
    store.append(a_draft(b"delivered"))
    yield store
    store.close()


@pytest.fixture
def files(store: MessageStore, clock: ClockAtRest) -> Iterator[TimerFiles]:
    files = TimerFiles(store.root, 1 << 16)
    files.recover(clock.wall_ms(), store.positions.written)
    files.allocate()
    yield files
    files.close()


@pytest.fixture
def saving(store: MessageStore, files: TimerFiles, clock: ClockAtRest) -> TimerSaving:
    return TimerSaving(files, store, TimerCounts(store.root, clock), clock)


def test_progress_is_not_saved_before_it_is_confirmed(store, files, saving) -> None:
    async def story() -> None:
        await saving.save(PROGRESS, 0)
        store.flush_now()
        await saving.save(PROGRESS, 0)
        assert files.checkpoint.queue_offset == 0
        store.positions.acknowledge(1, store.positions.written)
        store.confirm()
        await saving.save(PROGRESS, 0)
        assert files.checkpoint.queue_offset == 7

    asyncio.run(story())


def test_store_is_flushed_and_confirmed_before_the_progress_of_a_stop_is_saved(store, files, saving) -> None:
    async def story() -> None:
        assert not await saving.flush_store()
        assert store.positions.flushed == store.positions.written
        store.positions.acknowledge(1, store.positions.written)
        assert await saving.flush_store()
        await saving.save_now(PROGRESS)
        assert files.checkpoint.queue_offset == 7

    asyncio.run(story())


def test_progress_noted_before_a_truncation_is_forgotten(store, files, saving) -> None:
    """The bytes that are confirmed later are not those of the deliveries in it."""

    async def story() -> None:
        await saving.save(PROGRESS, 0)
        saving.forget()
        store.truncate_to(0)
        store.append(a_draft(b"other bytes"))
        store.flush_now()
        store.positions.acknowledge(1, store.positions.written)
        store.confirm()
        await saving.save(TimerProgress(2, 1_700_000_000), 0)
        assert files.checkpoint.queue_offset == 0
        await saving.save(TimerProgress(2, 1_700_000_000), 0)
        assert files.checkpoint.queue_offset == 2

    asyncio.run(story())

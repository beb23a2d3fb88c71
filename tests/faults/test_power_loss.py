"""Power loss: whatever subset of unflushed pages the disk has kept, what was promised is there."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.commitlog.positions import Callback
from store.metadata import JsonConfigFile
from tests.checkers import Recorder
from tests.faults.aftermath import check_store
from tests.faults.power import DiskThatLosesItsPower
from tests.faults.stories import ClockThatTicks, Writer, open_store

pytestmark = [pytest.mark.faults, pytest.mark.slow]

# Files of 16 pages, so that a record spans some and a file holds many.
PAGED = {
    "commit_log_file_bytes": 16 * 4096, "consume_queue_file_bytes": 20 * 410, "index_slots": 100,
    "index_entries": 400, "checkpoint_interval_ms": 60_000,
}  # fmt: skip

seeds = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def disk_at(directory: Path, seed: int) -> Iterator[tuple[DiskThatLosesItsPower, random.Random]]:
    """A disk in a directory of its own, which is removed with all that stands beside it."""
    root = directory / "run" / "store"
    shutil.rmtree(root.parent, ignore_errors=True)
    root.mkdir(parents=True)
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        disk = DiskThatLosesItsPower(root, rng, patched)
        yield disk, rng
    disk.close()


def some_sends(
    writer: Writer, clock: ClockThatTicks, rng: random.Random, disk: DiskThatLosesItsPower
) -> None:
    for _ in range(rng.randint(1, 12)):
        act = rng.random()
        if act < 0.6:
            writer.send(padding=rng.choice((0, 100, 3000, 9000)))
        elif act < 0.7:
            writer.send_batch(rng.randint(1, 40))
        elif act < 0.85:
            writer.settle()
        else:
            clock.leap(61_000)
            writer.store.advance()
            writer.store.finish_background()  # so that a seed always tells the same story
        if rng.random() < 0.3:
            disk.some_time_passes()


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_under_sync_flush_no_power_loss_takes_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    clock = ClockThatTicks()
    with disk_at(tmp_path, seed) as (disk, rng), closing(open_store(disk.root, clock, **PAGED)) as store:
        writer = Writer(disk.root, store, Recorder())
        for number in range(3):
            some_sends(writer, clock, rng, disk)
            image = disk.cut(disk.root.with_name(f"cut-{number}"))
            check_store(
                image, f"seed {seed}, cut {number}", events=writer.recorder.events, holes=True, **PAGED
            )
        store.close()


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_under_async_flush_a_power_loss_costs_what_was_not_flushed_and_no_more(
    tmp_path: Path, seed: int
) -> None:
    clock = ClockThatTicks()
    later = {**PAGED, "flush": "async"}
    with disk_at(tmp_path, seed) as (disk, rng), closing(open_store(disk.root, clock, **later)) as store:
        waiting: list[tuple[int, Callback]] = []
        writer = Writer(disk.root, store, Recorder(), lambda end, callback: waiting.append((end, callback)))
        for number in range(3):
            some_sends(writer, clock, rng, disk)
            kept = [each for each in waiting if each[0] <= store.positions.flushed]
            for _, tell in kept:
                tell(None)
            waiting = [each for each in waiting if each not in kept]
            image = disk.cut(disk.root.with_name(f"cut-{number}"))
            check_store(
                image, f"seed {seed}, cut {number}", events=writer.recorder.events, holes=True, **PAGED
            )
        store.close()


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_power_lost_while_recovery_mends_a_power_loss_takes_nothing_more(tmp_path: Path, seed: int) -> None:
    clock = ClockThatTicks()
    with disk_at(tmp_path, seed) as (disk, rng), closing(open_store(disk.root, clock, **PAGED)) as store:
        writer = Writer(disk.root, store, Recorder())
        some_sends(writer, clock, rng, disk)
        some_sends(writer, clock, rng, disk)
        first = disk.cut(disk.root.with_name("first"))
        events = list(writer.recorder.events)
    with pytest.MonkeyPatch.context() as patched:
        disk = DiskThatLosesItsPower(first, rng, patched)
        again = open_store(first, clock, **PAGED)
        disk.some_time_passes()
        second = disk.cut(disk.root.with_name("second"))
        disk.close()
    again.close()
    check_store(second, f"seed {seed}", events=events, holes=True, **PAGED)


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_a_table_is_whole_after_a_power_loss_and_no_older_than_its_last_save(
    tmp_path: Path, seed: int
) -> None:
    with disk_at(tmp_path, seed) as (disk, rng):
        file = JsonConfigFile(disk.root / "config" / "consumerOffset.json")
        saved = 0
        for number in range(1, rng.randint(1, 4) + 1):
            file.save({"saved": number})
            saved = number
            disk.some_time_passes()
        # In the middle of the next save: its content is written, in part or not at all.
        (disk.root / "consumerOffset.json.new").write_text('{"saved": 9')
        image = disk.cut(disk.root.with_name("cut"))
        assert JsonConfigFile(image / "config" / "consumerOffset.json").load() == {"saved": saved}

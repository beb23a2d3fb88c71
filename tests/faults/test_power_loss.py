"""Power loss: with any subset of unflushed pages on disk, the flushed or acknowledged messages are kept."""

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
from store.common.json_file import JsonConfigFile
from tests.checkers import Recorder
from tests.faults.aftermath import check_store
from tests.faults.power import PowerLossDisk
from tests.faults.scenarios import TickingClock, Writer, open_store

pytestmark = [pytest.mark.faults, pytest.mark.slow]

# Files of 16 pages: records may span pages, and a file holds many records.
PAGED = {
    "commit_log_file_bytes": 16 * 4096, "consume_queue_file_bytes": 20 * 410, "index_slots": 100,
    "index_entries": 400, "checkpoint_interval_ms": 60_000,
}  # fmt: skip

seeds = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def disk_at(directory: Path, seed: int) -> Iterator[tuple[PowerLossDisk, random.Random]]:
    """Yield a simulated disk in a new directory, and the random generator of the seed."""
    root = directory / "run" / "store"
    shutil.rmtree(root.parent, ignore_errors=True)
    root.mkdir(parents=True)
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        disk = PowerLossDisk(root, rng, patched)
        yield disk, rng
    disk.close()


def some_sends(writer: Writer, clock: TickingClock, rng: random.Random, disk: PowerLossDisk) -> None:
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
            writer.store.finish_background()  # makes the run of a seed deterministic
        if rng.random() < 0.3:
            disk.write_back_some()


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_power_loss_with_sync_flush_keeps_acknowledged_messages(tmp_path: Path, seed: int) -> None:
    clock = TickingClock()
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
def test_power_loss_with_async_flush_keeps_flushed_messages(tmp_path: Path, seed: int) -> None:
    clock = TickingClock()
    later = {**PAGED, "flush": "async"}
    with disk_at(tmp_path, seed) as (disk, rng), closing(open_store(disk.root, clock, **later)) as store:
        waiting: list[tuple[int, Callback]] = []
        writer = Writer(disk.root, store, Recorder(), lambda end, callback: waiting.append((end, callback)))
        for number in range(3):
            some_sends(writer, clock, rng, disk)
            kept = [each for each in waiting if each[0] <= store.positions.flushed]
            for _, callback in kept:
                callback(None)
            waiting = [each for each in waiting if each not in kept]
            image = disk.cut(disk.root.with_name(f"cut-{number}"))
            check_store(
                image, f"seed {seed}, cut {number}", events=writer.recorder.events, holes=True, **PAGED
            )
        store.close()


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_power_loss_during_recovery_loses_nothing_more(tmp_path: Path, seed: int) -> None:
    clock = TickingClock()
    with disk_at(tmp_path, seed) as (disk, rng), closing(open_store(disk.root, clock, **PAGED)) as store:
        writer = Writer(disk.root, store, Recorder())
        some_sends(writer, clock, rng, disk)
        some_sends(writer, clock, rng, disk)
        first = disk.cut(disk.root.with_name("first"))
        events = list(writer.recorder.events)
    with pytest.MonkeyPatch.context() as patched:
        disk = PowerLossDisk(first, rng, patched)
        again = open_store(first, clock, **PAGED)
        disk.write_back_some()
        second = disk.cut(disk.root.with_name("second"))
        disk.close()
    again.close()
    check_store(second, f"seed {seed}", events=events, holes=True, **PAGED)


@seeds
@given(seed=st.integers(0, 1 << 32))
def test_power_loss_keeps_last_saved_table(tmp_path: Path, seed: int) -> None:
    with disk_at(tmp_path, seed) as (disk, rng):
        file = JsonConfigFile(disk.root / "config" / "consumerOffset.json")
        saved = 0
        for number in range(1, rng.randint(1, 4) + 1):
            file.save({"saved": number})
            saved = number
            disk.write_back_some()
        # Power is lost during the next save, whose temporary file is incomplete.
        (disk.root / "consumerOffset.json.new").write_text('{"saved": 9')
        image = disk.cut(disk.root.with_name("cut"))
        assert JsonConfigFile(image / "config" / "consumerOffset.json").load() == {"saved": saved}

"""Pending timer messages are in the files; only those of the present second are in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import store
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_files import TimerFiles, follow_timer
from store.timer.timer_schedule import TimerArrival, TimerSchedule

START_MS = 1_700_000_000_000


def allocated_bytes() -> int:
    """Return what the store and this file have allocated; threads of other tests are not counted."""
    places = (f"{Path(store.__file__).parent}/*", __file__, "<string>")
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, place) for place in places])
    return sum(trace.size for trace in ours.traces)


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.extended)])
def test_pending_timers_take_no_memory(tmp_path: Path, count: int) -> None:
    per_second = count // 200
    files = TimerFiles(tmp_path, 100 << 20)
    (tmp_path / "config").mkdir()
    progress = files.recover(START_MS, 1 << 40)
    files.allocate()
    schedule = TimerSchedule(files, progress.read_second, 172_800)
    tracemalloc.start()
    for number in range(count):
        due_ms = START_MS + number % (count // per_second) * 1000 + number % 1000 + 1
        schedule.add(TimerArrival(due_ms, START_MS, number * 100, 100, 7))
    assert schedule.pending == count
    assert allocated_bytes() < 4 << 20
    taken = 0
    for now_ms in range(START_MS + 500, START_MS + 3_500, 500):
        while not schedule.load(now_ms, 2048):
            pass
        while entries := schedule.take(now_ms, 64):
            for entry in entries:
                assert now_ms - 500 < entry.unit.time_ms + 1 <= now_ms
                schedule.finish(entry)
            taken += len(entries)
    assert allocated_bytes() < 4 << 20
    tracemalloc.stop()
    assert (taken, schedule.pending) == (3 * per_second, count - 3 * per_second)
    files.close()


def test_rebuild_after_a_change_of_the_master_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    follow_timer(tmp_path, TimerCheckpoint(START_MS))
    with capture_logs() as events:
        TimerFiles(tmp_path, 1 << 20).recover(START_MS, 1 << 40)
    assert [(event["event"], event["log_level"]) for event in events] == [("timer_files_rebuilt", "info")]
    (tmp_path / "config" / "timercheck").write_bytes(b"damaged")
    (tmp_path / "timerlog").mkdir()
    with capture_logs() as events:
        TimerFiles(tmp_path, 1 << 20).recover(START_MS, 1 << 40)
    assert ("timer_files_rebuilt", "error") in [(event["event"], event["log_level"]) for event in events]

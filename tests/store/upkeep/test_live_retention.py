"""Live settings of retention: a change applies to the next round, or after the interval that has begun."""

from __future__ import annotations

import pytest

from store.common.live_settings import LiveSettings
from store.store_errors import StoreError
from store.upkeep.retention import Need
from tests.store.upkeep.test_retention import FOREVER_H, HOUR_MS, aged, disk, log_files, one_round, other_hour

__all__ = ["aged", "disk"]  # fixtures


def test_changed_limits_of_retention_apply_to_the_next_round(aged, clock):
    store = aged(delete_when_h=str(other_hour(clock, 0)))
    live = LiveSettings(store.settings)
    one_round(store, clock)
    assert len(log_files(store)) == 6
    live.update({"file_reserved_time_h": 2, "delete_file_batch_max": 1})
    one_round(store, clock)
    assert len(log_files(store)) == 5
    live.update({"delete_file_batch_max": 2})
    one_round(store, clock)
    assert len(log_files(store)) == 3


def test_changed_disk_levels_apply_to_the_next_round(aged, clock, disk, draft):
    store = aged(file_reserved_time_h=4, delete_file_batch_max=1)
    live = LiveSettings(store.settings)
    disk.percent = 60
    one_round(store, clock)
    assert len(log_files(store)) == 6
    live.update({"disk_max_used_percent": 59})
    one_round(store, clock)
    assert len(log_files(store)) == 5  # an expired file, at any hour
    live.update({"file_reserved_time_h": FOREVER_H, "force_clean_enabled": False})
    live.update({"disk_force_clean_percent": 59})
    one_round(store, clock)
    assert len(log_files(store)) == 5
    live.update({"force_clean_enabled": True})
    one_round(store, clock)
    assert len(log_files(store)) == 4  # the oldest file
    assert store.write_refusal is None
    live.update({"disk_refuse_writes_percent": 59})
    one_round(store, clock)
    with pytest.raises(StoreError, match="writes are refused above 59 %"):
        store.append(draft())


def test_changed_intervals_apply_after_the_next_round(aged, clock, disk):
    store = aged(file_reserved_time_h=0, delete_files_interval_ms=HOUR_MS, clean_interval_ms=10 * HOUR_MS)
    live = LiveSettings(store.settings)
    store.retention.delete_expired()
    for _ in range(3):
        store.advance()
        store.retention.finish()
    assert len(log_files(store)) == 5  # an hour passes before the next one
    live.update({"delete_files_interval_ms": 0})
    clock.advance(HOUR_MS)
    for _ in range(5):  # at the same time: only the changed interval allows more than one
        store.advance()
        store.retention.finish()
    assert len(log_files(store)) == 1

    live.update({"clean_interval_ms": 7})
    clock.advance(10 * HOUR_MS)  # the interval that had begun
    one_round(store, clock)
    before = len(disk.probed)
    clock.advance(7)
    store.advance()
    store.retention.finish()
    assert len(disk.probed) > before


def test_changed_release_timeout_applies_to_files_in_use(aged, clock, disk):
    store = aged(file_reserved_time_h=FOREVER_H, delete_file_batch_max=1, file_release_timeout_ms=HOUR_MS)
    held = store.get_message("Topic", 0, 0, 1, 1 << 20).slices
    disk.percent = 86
    one_round(store, clock)
    one_round(store, clock)
    assert len(log_files(store)) == 5  # the space of the deleted file will be freed
    LiveSettings(store.settings).update({"file_release_timeout_ms": 0})
    one_round(store, clock)
    assert len(log_files(store)) == 4
    del held


def test_files_that_replicas_need_are_kept_until_the_disk_is_too_full(aged, clock, disk, caplog):
    store = aged(file_reserved_time_h=0, disk_max_used_percent=59, disk_force_clean_percent=69)
    needed = [log_files(store)[2]]
    store.retention.keep_from("groups", lambda: None)
    store.retention.keep_from("replicas", lambda: Need(int(needed[0]), "replicas", "they copy it again"))
    disk.percent = 60
    one_round(store, clock)
    assert log_files(store)[0] == needed[0]
    assert "log_files_kept_for_replicas" in caplog.text
    needed[0] = log_files(store)[1]
    one_round(store, clock)
    assert log_files(store)[0] == needed[0]
    assert store.retention.needed_deleted == 0
    disk.percent = 70
    one_round(store, clock)
    assert log_files(store)[0] > needed[0]
    assert "needed_log_files_deleted" in caplog.text
    assert store.retention.needed_deleted > 0


def test_full_disk_takes_no_more_needed_files_than_it_must(aged, clock, disk):
    """Two records fill a file of 8 KiB; the disk has 1,000,000 bytes, and 1 % of them are two files."""
    store = aged(
        file_reserved_time_h=0,
        disk_max_used_percent=59,
        disk_force_clean_percent=69,
        clean_interval_ms=1_000_000,
    )
    store.retention.keep_from("groups", lambda: Need(0, "groups", "they lose it"))
    disk.percent = 70
    one_round(store, clock)
    assert store.retention.needed_deleted == 2
    assert len(log_files(store)) == 4

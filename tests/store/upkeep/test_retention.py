"""Retention: which files are deleted, when, and what stays readable."""

from __future__ import annotations

import errno
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.common.live_settings import LiveSettings
from store.consumequeue.consume_queue import ConsumeQueue
from store.disk.disk_use import DiskLevels, DiskUse, Pressure, survey
from store.disk.residency import FileRange, NotResident
from store.recovery.summary import read_summary
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.upkeep.retention import Round, files_to_delete, is_time_to_delete
from store.upkeep.stale_queues import StaleQueues
from tests.store.checkpoints import make_checkpoint
from tests.store.stepped import StepByStep

BODY = b"x" * 3000  # two records fill a log file of 8 KiB
HOUR_MS = 3_600_000
FOREVER_H = 1_000_000


class Disk:
    """A disk with the given usage; it records the directories whose usage was read."""

    def __init__(self, percent: int = 10) -> None:
        self.percent = percent
        self.total_bytes = 1_000_000
        self.probed: list[Path] = []

    def __call__(self, path: Path) -> DiskUse:
        self.probed.append(path)
        used_bytes = self.total_bytes * self.percent // 100
        return DiskUse(used_bytes, self.total_bytes - used_bytes)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def aged(stores, draft, drain, clock, disk):
    """Give a factory of stores with five full log files and a last one.

    Each full file is an hour older than the next.
    """

    def build(**settings):
        settings = {"delete_when_h": str(other_hour(clock)), **settings}
        store = stores.open(probe=disk, **settings)
        for number in range(11):
            store.append(draft(BODY, uniq=f"id-{number}", keys=f"key-{number}"))
        drain(store)
        make_checkpoint(store)
        directories = settings.get("commit_log_paths", ("commitlog",))
        paths = [path for name in directories for path in (store.root / name).iterdir()]
        paths.sort(key=lambda path: path.name)
        for age, path in enumerate(reversed(paths[:-1])):
            set_age(path, clock, age + 1)
        return store

    return build


def other_hour(clock, by: int = 12) -> int:
    return (datetime.fromtimestamp(clock.wall_ms() / 1000, tz=UTC).astimezone().hour + by) % 24


def log_files(store) -> list[str]:
    return names_in(store.root / "commitlog")


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def set_age(path: Path, clock, hours: int) -> None:
    changed_s = clock.wall_ms() / 1000 - hours * 3600
    os.utime(path, (changed_s, changed_s))


def one_round(store, clock) -> None:
    """Run one complete round: survey, deletions, and correction of the queues."""
    clock.advance(store.settings.clean_interval_ms)
    store.advance()
    for _ in range(12):
        store.retention.finish()
        clock.advance(store.settings.delete_files_interval_ms)
        store.advance()
    store.retention.finish()


# ---- the rules ---------------------------------------------------------------------------------------------


def test_disk_use_is_rounded_up_before_it_is_compared_with_levels():
    levels = DiskLevels(75, 85, 90)
    pressures = {free: levels.pressure(DiskUse(1000 - free, free)) for free in (250, 249, 150, 149, 100, 99)}
    assert pressures == {
        250: Pressure.NONE,
        249: Pressure.CLEAN,
        150: Pressure.CLEAN,
        149: Pressure.FORCE,
        100: Pressure.FORCE,
        99: Pressure.REFUSE,
    }


@pytest.mark.parametrize(("hours", "is_time"), [("04", True), ("4", True), ("3; 4", True), ("03;05", False)])
def test_delete_when_h_lists_local_hours(hours, is_time):
    four_oclock_ms = int(datetime(2026, 3, 1, 4, 59).astimezone().timestamp() * 1000)
    assert is_time_to_delete(hours, four_oclock_ms) is is_time


@pytest.mark.parametrize(
    ("hour", "minute", "is_time"), [(3, 59, False), (4, 0, True), (4, 59, True), (5, 0, False)]
)
def test_delete_when_h_covers_the_whole_hour(hour, minute, is_time):
    at_ms = int(datetime(2026, 3, 1, hour, minute, 59 if minute else 0).astimezone().timestamp() * 1000)
    assert is_time_to_delete("04", at_ms) is is_time
    assert is_time_to_delete("04;", at_ms) is is_time  # RocketMQ accepts a trailing semicolon


def test_files_to_delete_respects_age_and_batch_limit():
    now_ms = int(datetime(2026, 3, 1, 4, 30).astimezone().timestamp() * 1000)
    settings = StoreSettings(commit_log_file_bytes=8192)

    def chosen(ages_ms, pressure=Pressure.NONE, excess_bytes=0):
        changed_ms = {number * 8192: now_ms - age_ms for number, age_ms in enumerate(ages_ms)}
        return len(files_to_delete(settings, Round(now_ms, pressure, excess_bytes, changed_ms, False)))

    full_ms = 72 * HOUR_MS
    assert chosen([full_ms + 1, full_ms, full_ms - 1, full_ms]) == 2
    assert chosen([full_ms] * 11) == 10
    for excess_bytes, forced in ((0, 1), (8192, 1), (8193, 2), (3 * 8192, 3), (100 * 8192, 10)):
        assert chosen([0] * 20, Pressure.FORCE, excess_bytes) == forced
    assert (
        chosen([full_ms, full_ms, 0, 0], Pressure.FORCE, 8192) == 2
    )  # expired files count toward the excess


@given(
    ages_h=st.lists(st.integers(0, 200), max_size=20),
    pressure=st.sampled_from(Pressure),
    excess_bytes=st.integers(0, 100_000),
    is_requested=st.booleans(),
)
def test_files_to_delete_are_the_oldest_without_gaps(ages_h, pressure, excess_bytes, is_requested):
    now_ms = int(datetime(2026, 3, 1, 12).astimezone().timestamp() * 1000)
    settings = StoreSettings(commit_log_file_bytes=8192)
    changed_ms = {number * 8192: now_ms - age * HOUR_MS for number, age in enumerate(ages_h)}
    chosen = files_to_delete(settings, Round(now_ms, pressure, excess_bytes, changed_ms, is_requested))

    assert chosen == list(changed_ms)[: len(chosen)]
    assert len(chosen) <= settings.delete_file_batch_max
    young = [base for base in chosen if now_ms - changed_ms[base] < settings.file_reserved_time_h * HOUR_MS]
    if pressure < Pressure.FORCE:
        assert not young
    if pressure is Pressure.NONE and not is_requested:
        assert not chosen
    # Forced deletion frees no more than the excess.
    assert all(base < max(excess_bytes, 1) for base in young)


@pytest.mark.parametrize("hours", ["", "24", "4h", "4,5"])
def test_invalid_delete_when_h_is_refused(hours):
    with pytest.raises(ValueError, match="is not a list of hours"):
        StoreSettings(delete_when_h=hours)


# ---- a store -----------------------------------------------------------------------------------------------


def test_expired_files_are_deleted_at_the_configured_hour(aged, clock, read_all):
    store = aged()
    for name, hours in zip(log_files(store), (80, 73, 71), strict=False):
        set_age(store.root / "commitlog" / name, clock, hours)
    one_round(store, clock)
    assert len(log_files(store)) == 6  # not at the configured hour

    LiveSettings(store.settings).update({"delete_when_h": str(other_hour(clock, 0))})
    one_round(store, clock)

    assert log_files(store)[0] == f"{2 * 8192:020d}"
    assert store.positions.min == 2 * 8192
    assert store.min_offset("Topic", 0) == 4
    assert [message.queue_offset for message in read_all(store)] == list(range(4, 11))


def test_expired_files_are_deleted_at_any_hour_if_the_disk_is_full(aged, clock, disk):
    store = aged(file_reserved_time_h=4)
    one_round(store, clock)
    assert len(log_files(store)) == 6
    disk.percent = 76
    one_round(store, clock)
    assert log_files(store)[0] == f"{2 * 8192:020d}"


def test_delete_expired_deletes_expired_files_now(aged, clock):
    store = aged(file_reserved_time_h=5)
    store.retention.delete_expired()
    one_round(store, clock)
    assert log_files(store)[0] == f"{8192:020d}"


def test_round_does_not_end_the_deletion_of_files_before_an_offset(aged, clock):
    store = aged()
    store.retention.delete_before(4 * 8192)
    one_round(store, clock)
    assert log_files(store)[0] == f"{4 * 8192:020d}"


def test_force_clean_deletes_only_as_many_files_as_needed(aged, clock, disk, read_all):
    store = aged(file_reserved_time_h=FOREVER_H)
    disk.percent = 86  # 1 % of a million bytes is two files
    one_round(store, clock)
    assert log_files(store)[0] == f"{2 * 8192:020d}"
    assert len(read_all(store)) == 7


def test_last_log_file_is_never_deleted(aged, clock, disk, read_all, draft):
    store = aged(file_reserved_time_h=0, disk_refuse_writes_percent=99)
    disk.percent = 95
    for _ in range(3):
        one_round(store, clock)
    assert log_files(store) == [f"{5 * 8192:020d}"]
    store.append(draft(BODY))
    store.advance()
    assert [message.queue_offset for message in read_all(store)] == [10, 11]


def test_log_files_not_yet_dispatched_are_never_deleted(stores, draft, clock, disk):
    store = stores.open(probe=disk, file_reserved_time_h=0, flush="sync")
    for _ in range(5):
        store.append(draft(BODY))
    disk.percent = 95
    one_round(store, clock)  # nothing is flushed yet
    assert len(log_files(store)) == 3


def test_full_disk_refuses_appends_with_its_figures_but_serves_reads(aged, clock, disk, draft, read_all):
    store = aged(force_clean_enabled=False)
    disk.percent = 91
    one_round(store, clock)
    with pytest.raises(StoreError, match=r"91 % full, 90,000 bytes are free: writes are refused above 90 %"):
        store.append(draft())
    assert "commitlog" in store.write_refusal
    assert len(read_all(store)) == 11

    disk.percent = 86  # below 90 %, but still above the level of forced cleaning
    one_round(store, clock)
    assert store.write_refusal is not None
    disk.percent = 85
    one_round(store, clock)
    assert store.append(draft()).queue_offset == 11


def test_disk_pressure_follows_the_log_directory_with_most_space():
    use = {"a": DiskUse(95, 5), "b": DiskUse(40, 60), "queues": DiskUse(50, 50)}
    state = survey([Path("a"), Path("b")], Path("queues"), lambda path: use[str(path)])
    assert state.log == (Path("b"), use["b"])
    assert state.pressure(DiskLevels(75, 85, 90)) is Pressure.NONE


def test_slice_in_flight_keeps_its_deleted_file_mapped(aged, clock, disk):
    store = aged(file_reserved_time_h=FOREVER_H, delete_file_batch_max=1)
    held = store.get_message("Topic", 0, 0, 1, 1 << 20).slices
    before = bytes(held[0])
    disk.percent = 86
    one_round(store, clock)

    first = log_files(store)[0]
    assert first == f"{8192:020d}"  # the first file is unlinked immediately
    assert bytes(held[0]) == before  # and is still mapped
    assert is_mapped(store, f"{0:020d}")
    one_round(store, clock)
    assert log_files(store)[0] == first  # its space will be freed, so no other file is deleted

    del held
    one_round(store, clock)
    assert not is_mapped(store, f"{0:020d}")
    one_round(store, clock)
    assert log_files(store)[0] > first


def is_mapped(store, name: str) -> bool:
    """Return True if this process maps the log file of this name, even if it is unlinked."""
    return f"{store.root}/commitlog/{name}" in Path("/proc/self/maps").read_text()


def test_deleted_log_files_are_removed_from_queues_and_index(stores, draft, drain, clock, disk):
    store = stores.open(probe=disk, file_reserved_time_h=0, consume_queue_file_bytes=80, index_entries=5)
    for number in range(20):
        store.append(draft(BODY, queue_id=number % 2, keys=f"key-{number}"))
    drain(store)
    make_checkpoint(store)
    disk.percent = 76
    clock.set_wall_ms(2 * clock.wall_ms())
    one_round(store, clock)

    # Files of 4 units; the log keeps its last file, with records 18 and 19.
    assert names_in(store.root / "consumequeue/Topic/0") == [f"{160:020d}"]
    assert [store.min_offset("Topic", queue) for queue in (0, 1)] == [9, 9]
    assert len(list((store.root / "index").iterdir())) == 1
    assert store.query_by_key("Topic", "key-3") == []
    assert len(store.query_by_key("Topic", "key-19")) == 1


def test_log_files_are_deleted_after_a_checkpoint_has_their_units(stores, draft, clock):
    """Else a power loss could take units without records, and the queue would repeat their offsets."""
    executor = StepByStep()
    store = stores.open(executors=lambda _name, _threads: executor, file_reserved_time_h=0)
    for _ in range(11):
        store.append(draft(BODY))
    store.flush_now()
    store.dispatch_now()
    for path in (store.root / "commitlog").iterdir():
        set_age(path, clock, 1)
    store.retention.delete_expired()
    for _ in range(30):
        executor.step()
        clock.advance(store.settings.delete_files_interval_ms)
        store.advance()
        assert store.positions.min <= read_summary(store.root, store.identity.store_id).position
    assert len(log_files(store)) == 1


def test_read_after_a_deletion_begins_at_an_existing_record(aged, clock, disk, monkeypatch):
    store = aged(file_reserved_time_h=3)
    disk.percent = 76
    clock.advance(store.settings.clean_interval_ms)
    store.advance()
    store.retention.finish()
    monkeypatch.setattr(StaleQueues, "correct_some", lambda _: None)  # the queue has not been corrected yet
    store.advance()
    assert store.retention.has_stale_queues
    found = store.get_message("Topic", 0, 0, 1, 1 << 20)
    assert (found.status.name, found.next_begin_offset) == ("OFFSET_TOO_SMALL", 2)


@pytest.mark.parametrize("ending", ["clean", "killed"])
def test_restart_after_cleaning_keeps_the_first_offset(aged, stores, clock, disk, read_all, draft, ending):
    store = aged(file_reserved_time_h=3, index_entries=5, consume_queue_file_bytes=80)
    disk.percent = 76
    one_round(store, clock)
    kept = [(message.queue_offset, message.body) for message in read_all(store)]
    end = store.positions.written
    if ending == "killed":
        stores.kill(store, "again")
    else:
        store.close()
    again = stores.open(
        "again" if ending == "killed" else "store", consume_queue_file_bytes=80, index_entries=5
    )
    if ending == "clean":
        assert again.recovered.dispatched_from == end  # the files match the checkpoint
    assert again.min_offset("Topic", 0) == 6
    assert [(message.queue_offset, message.body) for message in read_all(again)] == kept
    assert len(again.query_by_key("Topic", "key-7")) == 1
    assert again.append(draft()).queue_offset == 11


def test_clean_expired_queues_removes_queues_without_messages(stores, draft, drain, clock, disk, read_all):
    store = stores.open(probe=disk, file_reserved_time_h=0)
    store.append(draft(b"old", topic="Old"))
    store.append(draft(b"kept", topic="Kept"))
    for _ in range(4):
        store.append(draft(BODY))
    drain(store)
    make_checkpoint(store)
    disk.percent = 76
    clock.set_wall_ms(2 * clock.wall_ms())
    one_round(store, clock)

    assert store.retention.clean_expired_queues(lambda topic: topic == "Kept", 9) == [("Old", 0)]
    assert not (store.root / "consumequeue/Old/0").exists()
    assert (store.min_offset("Kept", 0), store.max_offset("Kept", 0)) == (1, 1)
    assert store.retention.clean_expired_queues(lambda topic: topic == "Kept", 9) == []
    store.append(draft(b"new", topic="Old"))
    store.advance()
    assert [message.body for message in read_all(store, "Old")] == [b"new"]


def test_stale_queues_not_resident_are_corrected_without_waiting(aged, clock, disk, monkeypatch):
    store = aged(file_reserved_time_h=3)
    cold = {"Topic"}
    correct = ConsumeQueue.correct_min_offset

    def correct_or_wait(queue, min_physical_offset):
        if store.resident_only.is_required and queue.topic in cold:
            raise NotResident([FileRange(queue.file_path(0), 0, 20)])
        correct(queue, min_physical_offset)

    monkeypatch.setattr(ConsumeQueue, "correct_min_offset", correct_or_wait)
    disk.percent = 76
    one_round(store, clock)
    assert store.retention.has_stale_queues  # loaded and retried in each turn
    with pytest.raises(NotResident), store.resident_only:
        store.get_message("Topic", 0, 0, 1, 1 << 20)
    assert store.retention.has_stale_queues  # the queue stays stale after a read that must not wait

    cold.clear()
    one_round(store, clock)
    assert not store.retention.has_stale_queues
    assert store.min_offset("Topic", 0) == 6


def test_oldest_log_file_is_deleted_first_across_directories(aged, clock, disk, read_all):
    store = aged(file_reserved_time_h=3, commit_log_paths=("disk1", "disk2"))
    places = {directory: names_in(store.root / directory) for directory in ("disk1", "disk2")}
    assert [len(names) for names in places.values()] == [3, 3]
    disk.percent = 76
    one_round(store, clock)
    assert [path.name for path in disk.probed[:3]] == ["disk1", "disk2", "consumequeue"]
    left = sorted(names_in(store.root / "disk1") + names_in(store.root / "disk2"))
    assert left == [f"{number * 8192:020d}" for number in (3, 4, 5)]
    assert [message.queue_offset for message in read_all(store)] == [6, 7, 8, 9, 10]


def test_failed_file_deletion_is_retried(aged, clock, disk, monkeypatch, read_all):
    store = aged(file_reserved_time_h=5)
    disk.percent = 76
    refused = []
    unlink = Path.unlink

    def unlink_or_fail(path, missing_ok=False):
        if len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_or_fail)
    for _ in range(3):
        one_round(store, clock)
    assert len(refused) == 2
    assert log_files(store)[0] == f"{8192:020d}"
    assert len(read_all(store)) == 9


@pytest.mark.parametrize("kept", ["commitlog", "consumequeue", "index", "raymq.derived"])
def test_power_loss_that_undoes_a_deletion_loses_no_message(aged, stores, clock, disk, read_all, draft, kept):
    """Unlinks are not synced, so after a power loss any directory may be in its earlier state."""
    small = {"index_entries": 5, "consume_queue_file_bytes": 80}
    store = aged(file_reserved_time_h=3, **small)
    make_checkpoint(store)
    before = stores.kill(store, "before")
    disk.percent = 76
    one_round(store, clock)
    whole = [(message.queue_offset, message.body) for message in read_all(store)]
    after = stores.kill(store, "after")

    part = after / kept
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    (before / kept).rename(part)
    again = stores.open("after", **small)

    found = [(message.queue_offset, message.body) for message in read_all(again)]
    assert found[-len(whole) :] == whole
    assert [offset for offset, _ in found] == list(range(again.min_offset("Topic", 0), 11))
    assert len(again.query_by_key("Topic", "key-7")) == 1
    assert again.append(draft()).queue_offset == 11


def test_force_clean_deletes_at_least_one_file(clock):
    now_ms = clock.wall_ms()
    found = Round(now_ms, Pressure.FORCE, 0, {0: now_ms, 1024: now_ms}, is_requested=False)
    assert files_to_delete(StoreSettings(delete_when_h=str(other_hour(clock))), found) == [0]


def test_delete_expired_request_ends_after_twenty_rounds(aged, clock):
    store = aged()
    store.retention.delete_expired()
    for _ in range(19):
        one_round(store, clock)
    before = log_files(store)
    set_age(store.root / "commitlog" / before[0], clock, 100)
    one_round(store, clock)
    assert log_files(store) == before[1:]  # the twentieth round still deletes
    before = log_files(store)
    set_age(store.root / "commitlog" / before[0], clock, 100)
    one_round(store, clock)
    assert log_files(store) == before

"""The timer's files: RocketMQ's bytes are decoded and encoded unchanged, and damage is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from store.message.tags import java_hash
from store.store_errors import StoreError
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_log import TimerLog
from store.timer.timer_metrics import TimerMetrics
from store.timer.timer_unit import DELETE, NORMAL, ROLL, TimerUnit, decode_unit
from store.timer.timer_wheel import SLOTS, WHEEL_BYTES, Slot, TimerWheel
from tests.conftest import RocketStore

UNIT_BYTES = 52
FILE_BYTES = 10 * UNIT_BYTES + 30
"""Room for ten units and a blank of 30 bytes."""


@pytest.fixture(params=["clean_store", "crashed_store"])
def rocket(request: pytest.FixtureRequest) -> RocketStore:
    store: Callable[[], RocketStore] = request.getfixturevalue(request.param)
    return store()


def timer_messages(rocket: RocketStore) -> list[dict]:
    rows = map(json.loads, rocket.expected.read_text().splitlines())
    return [row for row in rows if row["topic"] == "rmq_sys_wheel_timer"]


def open_log(rocket: RocketStore) -> TimerLog:
    log = TimerLog(rocket.root / "timerlog", 1 << 20)
    checkpoint = TimerCheckpoint.read(rocket.root / "config" / "timercheck")
    assert checkpoint is not None
    log.recover(checkpoint.log_flush_position, 1 << 40)
    return log


def test_units_of_rocketmq_name_the_records_of_its_timer_topic(rocket: RocketStore) -> None:
    log = open_log(rocket)
    messages = timer_messages(rocket)
    assert log.end == len(messages) * UNIT_BYTES
    for number, message in enumerate(messages):
        unit = log.unit_at(number * UNIT_BYTES)
        properties = message["properties"]
        assert (unit.physical_offset, unit.record_bytes) == (message["commitLogOffset"], message["storeSize"])
        assert unit.topic_hash == java_hash(properties["REAL_TOPIC"])
        assert (unit.magic, unit.time_ms) == (NORMAL, int(properties["TIMER_OUT_MS"]))


def test_units_are_encoded_as_rocketmq_encodes_them(rocket: RocketStore) -> None:
    written = (rocket.root / "timerlog" / "00000000000000000000").read_bytes()
    for number in range(len(timer_messages(rocket))):
        data = written[number * UNIT_BYTES : (number + 1) * UNIT_BYTES]
        unit = decode_unit(data)
        assert unit is not None
        assert unit.encode() == data


def test_slots_of_rocketmq_lead_to_all_units_of_their_second(rocket: RocketStore) -> None:
    log, wheel = open_log(rocket), TimerWheel(rocket.root / "timerwheel")
    by_second: dict[int, list[int]] = {}
    for base, units in log.units():
        for number, time_ms in enumerate((units["written_ms"] + units["delay_ms"]).tolist()):
            by_second.setdefault(time_ms // 1000, []).append(base + number * UNIT_BYTES)
    for second, positions in by_second.items():
        slot = wheel.slot(second)
        assert slot == Slot(positions[0], positions[-1], len(positions), slot.magic)
        chain, position = [], slot.last
        while position != -1:
            chain.append(position)
            position = log.unit_at(position).previous
        assert chain == positions[::-1]
    assert wheel.pending(0) == len(timer_messages(rocket))


def test_slot_is_encoded_as_rocketmq_encodes_it(rocket: RocketStore) -> None:
    path = rocket.root / "timerwheel"
    wheel = TimerWheel(path)
    seconds = wheel.table()["second"]
    before = path.read_bytes()
    for second in seconds[seconds > 0].tolist():
        wheel.put(second, wheel.slot(second))
    assert path.read_bytes() == before


def test_checkpoint_of_rocketmq_is_read_and_written_unchanged(rocket: RocketStore, tmp_path: Path) -> None:
    path = rocket.root / "config" / "timercheck"
    found = TimerCheckpoint.read(path)
    assert found is not None
    messages = len(timer_messages(rocket))
    assert (found.queue_offset, found.master_queue_offset) == (messages, messages)
    assert found.log_flush_position == messages * UNIT_BYTES
    assert found.last_read_ms % 1000 == 0
    found.write(tmp_path / "again" / "timercheck")
    assert (tmp_path / "again" / "timercheck").read_bytes() == path.read_bytes()
    assert TimerCheckpoint.decode(found.encode()) == found


def test_metrics_of_rocketmq_are_read_and_written_unchanged(clean_store: Callable[[], RocketStore]) -> None:
    content = json.loads((clean_store().root / "config" / "timermetrics").read_bytes())
    metrics = TimerMetrics.from_json(content)
    assert metrics.to_json() == content
    metrics.add("Fix7_timer", -1, 5)
    metrics.add("new", 2, 6)
    metrics.add("never negative", -1, 7)
    again = TimerMetrics.from_json(metrics.to_json())
    assert again.counts == {"Fix7_timer": 4, "new": 2, "never negative": 0}
    assert again.data_version.counter == content["dataVersion"]["counter"] + 3


def a_unit(number: int, previous: int = -1, magic: int = NORMAL) -> TimerUnit:
    return TimerUnit(previous, magic, 1_700_000_000_000, number, number * 100, 99, 7)


def filled(directory: Path, count: int) -> TimerLog:
    log = TimerLog(directory, FILE_BYTES)
    for number in range(count):
        if log.is_full:
            log.allocate()
        log.append(a_unit(number))
    return log


def test_full_file_ends_with_a_blank_of_its_length(tmp_path: Path) -> None:
    log = filled(tmp_path / "timerlog", 21)
    assert sorted(path.name for path in (tmp_path / "timerlog").iterdir()) == [
        f"{number * FILE_BYTES:020d}" for number in range(3)
    ]
    first = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert first[10 * UNIT_BYTES :][:16] == pack(">iqi", 30, 0, 0xCBD43194 - (1 << 32))
    assert log.end == 2 * FILE_BYTES + UNIT_BYTES
    assert log.unit_at(FILE_BYTES + UNIT_BYTES) == a_unit(11)
    assert [(base, len(units)) for base, units in log.units(FILE_BYTES)] == [
        (FILE_BYTES, 10),
        (2 * FILE_BYTES, 1),
    ]


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25])
def test_recovery_finds_the_end_behind_any_number_of_units(tmp_path: Path, count: int) -> None:
    log = filled(tmp_path / "timerlog", count)
    end = log.end
    log.close()
    again = TimerLog(tmp_path / "timerlog", FILE_BYTES)
    again.recover(0, 1 << 40)
    assert again.end in (end, -(-end // FILE_BYTES) * FILE_BYTES)
    if again.is_full:
        again.allocate()
    assert again.unit_at(again.append(a_unit(77))) == a_unit(77)


def test_recovery_ends_before_a_damaged_unit_and_zeroes_the_rest(tmp_path: Path) -> None:
    filled(tmp_path / "timerlog", 15).close()
    with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as file:
        file.seek(6 * UNIT_BYTES)
        file.write(b"\x00\x00\x00\x35")
    log = TimerLog(tmp_path / "timerlog", FILE_BYTES)
    log.recover(0, 1 << 40)
    assert log.end == 6 * UNIT_BYTES
    content = b"".join(path.read_bytes() for path in sorted((tmp_path / "timerlog").iterdir()))
    assert not any(content[6 * UNIT_BYTES :])
    for number in range(6, 16):
        log.append(a_unit(number))
    assert [len(units) for _, units in log.units()] == [10, 6]


def test_files_are_deleted_when_all_their_messages_are(tmp_path: Path) -> None:
    log = filled(tmp_path / "timerlog", 25)
    assert log.delete_before(9 * 100) == 0
    assert log.delete_before(10 * 100) == 1
    assert (log.begin, log.unit_at(FILE_BYTES)) == (FILE_BYTES, a_unit(10))
    with pytest.raises(StoreError, match="no valid unit"):
        log.unit_at(0)
    assert log.delete_before(10**9) == 1
    assert log.unit_at(2 * FILE_BYTES) == a_unit(20)


def test_file_with_a_pending_message_before_an_old_unit_is_kept(tmp_path: Path) -> None:
    """A clean stop appends units again, so the physical offsets of the units need not ascend."""
    log = TimerLog(tmp_path / "timerlog", FILE_BYTES)
    for number in (1, 2, 3, 4, 50, 5, 6, 7, 8, 0, 60):
        if log.is_full:
            log.allocate()
        log.append(a_unit(number))
    assert log.delete_before(50 * 100) == 0
    assert log.delete_before(50 * 100 + 1) == 1


@pytest.mark.parametrize("position", [-52, 1, 10 * UNIT_BYTES, FILE_BYTES - 8, 10**12])
def test_position_without_a_unit_is_reported(tmp_path: Path, position: int) -> None:
    log = filled(tmp_path / "timerlog", 12)
    with pytest.raises(StoreError, match="no valid unit"):
        log.unit_at(position)


def test_log_with_a_gap_or_a_foreign_file_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "timerlog", 25).close()
    (tmp_path / "timerlog" / f"{FILE_BYTES:020d}").unlink()
    with pytest.raises(StoreError, match="expected the timer log file"):
        TimerLog(tmp_path / "timerlog", FILE_BYTES)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(StoreError, match="not a file of a timer log"):
        TimerLog(tmp_path / "other", FILE_BYTES)


def test_slot_is_valid_for_its_own_second_only(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel")
    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_BYTES == 38_707_200
    wheel.put(1_700_000_000, Slot(52, 104, 2))
    assert wheel.slot(1_700_000_000) == Slot(52, 104, 2)
    assert wheel.slot(1_700_000_000 + SLOTS) == Slot()
    wheel.put(1_700_000_001, Slot(0, 0, 1))
    assert (wheel.pending(0), wheel.pending(1_700_000_001)) == (3, 1)
    wheel.sync()
    wheel.close()
    assert TimerWheel(tmp_path / "timerwheel").slot(1_700_000_000) == Slot(52, 104, 2)


def test_wheel_and_checkpoint_of_another_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(bytes(100))
    with pytest.raises(StoreError, match="100 bytes"):
        TimerWheel(tmp_path / "timerwheel")
    (tmp_path / "timercheck").write_bytes(bytes(10))
    with pytest.raises(StoreError, match="10 bytes"):
        TimerCheckpoint.read(tmp_path / "timercheck")
    (tmp_path / "timercheck").write_bytes(b"\xff" * 4096)
    with pytest.raises(StoreError, match="negative"):
        TimerCheckpoint.read(tmp_path / "timercheck")
    assert TimerCheckpoint.read(tmp_path / "missing") is None


def test_flags_of_a_unit() -> None:
    assert not a_unit(1).is_roll
    assert a_unit(1, magic=NORMAL | ROLL).is_roll
    assert a_unit(1, magic=NORMAL | DELETE).is_delete
    assert not a_unit(1, magic=NORMAL | ROLL | DELETE).is_delete  # only after its last roll
    assert decode_unit(bytes(52)) is None

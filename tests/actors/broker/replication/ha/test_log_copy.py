"""A slave's log becomes a copy of its master's, and is never changed if the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.broker.replication.ha.ha_frames import HaFrame
from actors.broker.replication.ha.log_copy import (
    COMPARED_BYTES,
    LogBounds,
    LogCopy,
    LogDiverged,
    join_offset,
)
from actors.wire.remoting_errors import ProtocolError
from store.common.clock import SystemClock
from store.message.hosts import Host
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_errors import RecordDamaged
from store.store_settings import StoreSettings

FILE_BYTES = 8192


class Stores:
    """The stores of a master and of its slaves, with files of 8 KiB."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._opened: list[MessageStore] = []

    def open(self, name: str, messages: int = 0) -> MessageStore:
        settings = StoreSettings.model_validate(
            {"commit_log_file_bytes": FILE_BYTES, "flush": "async", "preallocate": False, "index_slots": 20}
        )
        store = MessageStore.open(
            self._root / name,
            settings,
            StoreIdentity("C", "broker-a", 0),
            SystemClock(),
            store_host=Host("127.0.0.1", 10911),
        )
        self._opened.append(store)
        fill(store, messages)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


def fill(store: MessageStore, messages: int, body: bytes = b"x" * 400) -> None:
    for number in range(messages):
        store.append(RecordDraft("T", 0, b"%05d" % number + body))


def log_of(store: MessageStore) -> bytes:
    files = sorted((store.root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[: store.positions.written]


def bounds_of(store: MessageStore) -> LogBounds:
    return LogBounds(store.positions.min, store.positions.written)


def frames_of(master: MessageStore, begin: int, chunk_bytes: int = 1000) -> list[HaFrame]:
    """Return the frames of a master's log: not aligned to records, and not across the end of a file."""
    log, frames, at = log_of(master), [], begin
    while at < len(log):
        end = min(at + chunk_bytes, (at // FILE_BYTES + 1) * FILE_BYTES, len(log))
        frames.append(HaFrame(at, memoryview(log)[at:end]))
        at = end
    return [*frames, HaFrame(at, memoryview(b""))]


def join(slave: MessageStore, master: MessageStore) -> LogCopy:
    """Return the copy with which a connection of the slave begins."""
    begin = join_offset(bounds_of(slave), bounds_of(master), FILE_BYTES)
    return LogCopy(slave, begin, log_of(slave)[begin:], master.positions.written)


def test_empty_slave_gets_the_whole_log_by_a_report_of_one(stores: Stores) -> None:
    master, slave = stores.open("master", 40), stores.open("slave")
    assert master.positions.written > 2 * FILE_BYTES
    copy = join(slave, master)
    assert (copy.first_report, copy.is_compared) == (1, True)
    for frame in frames_of(master, copy.first_report):
        copy.take([frame])
    slave.dispatch_now()
    assert log_of(slave) == log_of(master)
    assert slave.max_offset("T", 0) == 40


def test_slave_of_an_empty_master_reports_zero(stores: Stores) -> None:
    master, slave = stores.open("master"), stores.open("slave")
    copy = join(slave, master)
    assert copy.first_report == 0
    fill(master, 3)
    assert copy.take(frames_of(master, 0))
    assert log_of(slave) == log_of(master)


def test_slave_compares_its_last_file_before_it_appends(stores: Stores) -> None:
    master, slave = stores.open("master", 40), stores.open("slave")
    join(slave, master).take(frames_of(master, 1))
    held = slave.positions.written
    fill(master, 5)
    copy = join(slave, master)
    assert 0 < copy.first_report == (held - 1) // FILE_BYTES * FILE_BYTES
    assert not copy.is_compared
    appended = [copy.take([frame]) for frame in frames_of(master, copy.first_report)]
    assert appended[0] is False
    assert copy.is_compared
    assert copy.end == slave.positions.written == master.positions.written
    assert log_of(slave) == log_of(master)


def test_slave_that_stops_inside_a_record_joins_before_it(stores: Stores) -> None:
    master, slave = stores.open("master", 5), stores.open("slave")
    frames = frames_of(master, 1, chunk_bytes=700)
    join(slave, master).take(frames[:2])
    assert slave.positions.written == 1401  # inside the third record
    slave.close()
    again = stores.open("slave")
    assert again.positions.written < 1401
    copy = join(again, master)
    copy.take(frames_of(master, copy.first_report))
    assert log_of(again) == log_of(master)


def test_different_bytes_stop_the_copy_and_change_nothing(stores: Stores) -> None:
    master, slave = stores.open("master", 3), stores.open("slave")
    fill(slave, 2, b"y" * 400)
    before = log_of(slave)
    copy = join(slave, master)
    with pytest.raises(LogDiverged, match=r"at offset \d+, .* ends at 994") as caught:
        copy.take(frames_of(master, copy.first_report))
    assert log_of(slave)[: caught.value.position] == log_of(master)[: caught.value.position]
    assert log_of(slave)[caught.value.position] != log_of(master)[caught.value.position]
    assert log_of(slave) == before


@pytest.mark.parametrize(
    ("held", "master", "error"),
    [
        (LogBounds(0, 900), LogBounds(0, 800), "ends at 800, but this slave's at 900: the master has lost"),
        (LogBounds(0, 900), LogBounds(8192, 9000), "begins at 8,192, but this slave's ends at 900"),
    ],
)
def test_logs_without_a_common_end_are_refused_with_both_positions(
    held: LogBounds, master: LogBounds, error: str
) -> None:
    with pytest.raises(LogDiverged, match=error):
        join_offset(held, master, FILE_BYTES)


def test_join_offset_is_bounded_by_last_file_compared_bytes_and_masters_begin() -> None:
    file_bytes = 1 << 30
    master = LogBounds(0, 5 << 30)
    assert join_offset(LogBounds(0, 0), LogBounds(file_bytes, 2 << 30), file_bytes) == file_bytes
    end = file_bytes + 1000
    assert join_offset(LogBounds(0, end), master, file_bytes) == file_bytes
    assert join_offset(LogBounds(0, 2 * file_bytes), master, file_bytes) == 2 * file_bytes - COMPARED_BYTES
    younger = LogBounds(end - 10, 5 << 30)
    assert join_offset(LogBounds(0, end), younger, file_bytes) == end - 10


def test_frames_out_of_place_and_damaged_records_are_refused(stores: Stores) -> None:
    master, slave = stores.open("master", 20), stores.open("slave")
    frames = frames_of(master, 1)
    with pytest.raises(ProtocolError, match="sent bytes at offset 1,001, expected are 1"):
        join(slave, master).take(frames[1:])
    damaged = bytearray(frames[0].data)
    damaged[3] ^= 0xFF  # the magic code of the first record
    with pytest.raises(RecordDamaged, match="nothing of it was appended"):
        join(slave, master).take([HaFrame(1, memoryview(damaged))])
    assert slave.positions.written == 0

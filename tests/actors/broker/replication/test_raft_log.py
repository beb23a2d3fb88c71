"""RaftLog: the CommitLog of a broker as the log of a Raft group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.broker.replication.raft_log import RaftConfirm, RaftLog
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from store.common.clock import SystemClock
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_errors import RecordDamaged, StoreError
from store.store_settings import StoreSettings

FILE_BYTES = 4096
SETTINGS = StoreSettings(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=400,
    index=False,
    lock_timeout_ms=0,
    preallocate=False,
)
ME = Member(0, "store-0")
MEMBERS = Members((ME, Member(1, "store-1")))


class Replica:
    """A store with its group log."""

    def __init__(self, root: Path) -> None:
        self.confirm = RaftConfirm()
        identity = StoreIdentity("DefaultCluster", "broker-a", 0)
        self.store = MessageStore.open(root, SETTINGS, identity, SystemClock(), confirm=self.confirm)
        self.log = RaftLog(self.store, self.confirm, "DefaultCluster/broker-a", ME)

    def append(self, body: bytes) -> int:
        """Append a message; return its CommitLog offset."""
        return self.store.append(RecordDraft("Topic", 0, body)).physical_offset

    def ends(self) -> list[int]:
        return [each.end for each in self.log.parts(0, self.log.end) if each.record is not None]


@pytest.fixture
def replica(tmp_path: Path) -> Any:
    made = Replica(tmp_path / "a")
    yield made
    made.store.close()


@pytest.fixture
def other(tmp_path: Path) -> Any:
    made = Replica(tmp_path / "b")
    yield made
    made.store.close()


def test_reads_end_with_a_whole_record_and_never_with_a_blank(replica: Replica, other: Replica) -> None:
    for number in range(12):
        replica.append(b"%d" % number * 700)
    ends = replica.ends()
    assert ends[-1] > 2 * FILE_BYTES
    for max_bytes in (1, 900, 2_000, 5_000, 100_000):
        offset = 0
        while offset < replica.log.end:
            records = replica.log.read(offset, max_bytes)
            offset += len(records)
            assert offset in ends
    while other.log.end < replica.log.end:
        other.log.append(other.log.end, replica.log.read(other.log.end, 2_000))
    assert other.ends() == ends


def test_group_records_are_found_and_begin_with_the_blank_before_them(replica: Replica) -> None:
    first = replica.log.append_group_record(1, MEMBERS)
    while replica.log.end < FILE_BYTES - 200:
        replica.append(b"x" * 60)
    second = replica.log.append_group_record(2, MEMBERS)
    assert second.start < FILE_BYTES < replica.log.end
    assert list(replica.log.group_records(0, replica.log.end)) == [first, second]
    assert replica.log.state(0).records == (GroupRecord(0, 1, MEMBERS), second)


def test_messages_that_name_the_group_topic_are_no_group_records(replica: Replica) -> None:
    replica.append(b"rmq_sys_raymq_group")
    assert list(replica.log.group_records(0, replica.log.end)) == []


def test_blank_without_its_record_is_removed_at_the_start(replica: Replica, other: Replica) -> None:
    replica.append(b"1" * 3000)
    replica.append(b"2" * 3000)
    end = replica.ends()[0]
    other.log.append(0, replica.log.read(0, 1))
    other.store.append_raw(end, bytes(replica.store.log_bytes(end, FILE_BYTES)))
    assert other.log.end == FILE_BYTES
    other.log.remove_unfinished_tail()
    assert other.log.end == end


def test_only_what_the_node_confirms_is_confirmed_and_dispatched(replica: Replica) -> None:
    replica.append(b"1")
    end = replica.log.end
    replica.append(b"2")
    replica.store.flush_now()
    acknowledged: list[Any] = []
    replica.store.on_confirmed(end, acknowledged.append)
    replica.store.dispatch_now()
    assert replica.store.positions.dispatched == 0
    replica.log.confirm(end)
    replica.store.dispatch_now()
    assert replica.store.positions.dispatched == end
    assert acknowledged == [None]
    replica.log.confirm(end - 10)
    assert replica.store.positions.confirmed == end


def test_replica_dispatches_only_what_its_own_disk_has(replica: Replica) -> None:
    """Else its checkpoint would be ahead of its log, and recovery would not see that pages are lost."""
    replica.append(b"1")
    replica.log.confirm(replica.log.end)  # a majority of other replicas has flushed it
    replica.store.dispatch_now()
    assert replica.store.positions.dispatched == 0
    replica.store.flush_now()
    replica.store.dispatch_now()
    assert replica.store.positions.dispatched == replica.log.end


def overwrite(replica: Replica, offset: int, data: bytes) -> None:
    """Change the log file behind the store."""
    base = offset // FILE_BYTES * FILE_BYTES
    with (replica.store.root / "commitlog" / f"{base:020}").open("r+b") as file:
        file.seek(offset - base)
        file.write(data)


def test_damaged_records_are_repaired_with_those_of_another_replica(replica: Replica, other: Replica) -> None:
    offsets = [replica.append(b"%d" % number * 300) for number in range(20)]
    while other.log.end < replica.log.end:
        other.log.append(other.log.end, replica.log.read(other.log.end, 2_000))
    other.store.flush_now()
    other.log.confirm(other.log.end)
    other.store.dispatch_now()
    blank_end = FILE_BYTES
    begin = max(each for each in offsets if each < blank_end)
    end = next(each for each in replica.ends() if each > blank_end)
    overwrite(other, begin + 100, b"#")
    overwrite(other, blank_end + 100, b"#")
    with pytest.raises(StoreError, match="CRC of the body is wrong"):
        other.store.record_at(begin)
    with pytest.raises(RecordDamaged):
        other.log.read_range(begin, end)
    assert other.log.repair(begin, replica.log.read_range(begin, end)) is False
    assert other.log.read_range(0, other.log.end) == replica.log.read_range(0, replica.log.end)
    size_of_a_topic = bytes(replica.log.read_range(begin, end)).index(b"Topic") + begin
    overwrite(other, size_of_a_topic, b"t")
    assert other.log.repair(begin, replica.log.read_range(begin, end)) is True


def test_repair_with_damaged_or_other_records_changes_nothing(replica: Replica) -> None:
    offsets = [replica.append(b"%d" % number * 300) for number in range(3)]
    replica.store.flush_now()
    replica.log.confirm(replica.log.end)
    before = bytes(replica.store.log_bytes(0, replica.log.end))
    damaged = bytearray(before[offsets[1] : offsets[2]])
    damaged[100] ^= 1
    with pytest.raises(RecordDamaged, match=f"damaged at {offsets[1]:,}: the CRC of the body is wrong"):
        replica.log.repair(offsets[1], bytes(damaged))
    with pytest.raises(RecordDamaged, match="physicalOffset is not the position"):
        replica.log.repair(offsets[1], before[: offsets[1]])
    with pytest.raises(RecordDamaged):
        replica.log.repair(offsets[1], before[offsets[1] : offsets[2] - 1])
    assert bytes(replica.store.log_bytes(0, replica.log.end)) == before


def test_repair_of_records_that_are_not_confirmed_is_refused(replica: Replica) -> None:
    replica.append(b"1")
    with pytest.raises(StoreError, match=r"cannot repair offsets 0 to .*: the confirmed log covers 0 to 0"):
        replica.log.repair(0, replica.log.read(0, 1))


@pytest.mark.parametrize(("sector", "is_kept"), [(bytes(512), False), (b"\x55" * 512, True)])
def test_lost_pages_are_removed_but_other_damage_is_reported(
    tmp_path: Path, sector: bytes, is_kept: bool
) -> None:
    """Zeros are what a power loss leaves of pages that were not flushed; other bytes are damage."""
    replica = Replica(tmp_path / "c")
    replica.append(b"1" * 600)
    second, third = replica.append(b"2" * 1200), replica.append(b"3" * 600)
    end = replica.log.end
    replica.store.close()
    overwrite(replica, 1024, sector)
    again = Replica(tmp_path / "c")
    again.log.remove_unfinished_tail()
    assert again.log.damage == ((second, third) if is_kept else None)
    assert again.log.end == (end if is_kept else second)
    again.store.close()

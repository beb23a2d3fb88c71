"""StoreLog: a real MessageStore with small files as the log of a simulated replica.

A crash leaves what a power loss keeps of the store's files (`tests.faults.power`), or the files as they are.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.broker.broker_settings import RAFT, BrokerSettings
from actors.broker.replication.raft.group_tables import GroupTables
from actors.broker.replication.raft.opening import open_replica
from actors.broker.replication.raft.renewal import must_begin_again, require_rebuild
from actors.raft.group_record import GROUP_TOPIC, decode_group_record
from actors.raft.history import GroupRecord
from actors.raft.members import Members
from actors.raft.node import RaftNode
from actors.raft.term_file import TermFile
from store.commitlog.positions import ConfirmPolicy
from store.disk.disk_use import DiskUse
from store.dispatch.queue_changes import DELETED_TOPICS, META_TOPIC
from store.message.crc import crc32
from store.message.hosts import Host
from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_record
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity, StoreName, read_name, write_name
from store.recovery.summary import read_summary
from store.store_errors import RecordDamaged, StoreError
from store.store_settings import StoreSettings
from store.tools.verify import verify
from tests.faults.power import PowerLossDisk
from tests.sim.checks import Violation
from tests.sim.cutting_disk import CuttingDisk, PowerLost
from tests.sim.driven import GROUP, Opened, addresses_of
from tests.sim.model_log import Entry, Token
from tests.sim.store_tables import QUEUES, Queue, StoreTables
from tests.store.stepped import StepByStep

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica

SETTINGS = StoreSettings(
    commit_log_file_bytes=4096,
    consume_queue_file_bytes=400,
    index_slots=20,
    index_entries=64,
    flush="sync",
    lock_timeout_ms=0,
    preallocate=False,
    checkpoint_interval_ms=1_500,
)
READ_BYTES = 1000


class StoreLog:
    """The store of one replica, with the interface of ModelLog."""

    def __init__(self, replica: SimReplica, directory: Path, disks: list[PowerLossDisk]) -> None:
        self._replica = replica
        self._rng = random.Random(replica.sim.rng.getrandbits(32))
        self._disks = disks
        self._directory = directory / f"{replica.number}-{replica.stores}"
        self._directory.mkdir()
        self._life = 0
        self.path = self._directory / "0"
        self.path.mkdir()
        write_name(self.path, self._name())
        self._store: MessageStore | None = None
        self._kept: list[Token] = []  # what the log has while the process is down
        self._executors: list[StepByStep] = []
        self._disk: CuttingDisk | None = None
        self._job: Any = None
        self.durable = 0
        self.lost: list[Token] = []  # what the disk lost since the replica was last complete
        self.damage: tuple[int, int] | None = None
        self._damaged: list[Token] = []  # what was in the damaged range
        self._deleted_damage: tuple[int, int] | None = None  # a power loss may bring its file back
        self._joined = 0  # where an empty log will begin
        self._image: Path | None = None  # what a power loss in the middle of a truncation has left

    @property
    def store(self) -> MessageStore:
        assert self._store is not None
        return self._store

    # ---- positions -----------------------------------------------------------------------------------------

    @property
    def min(self) -> int:
        return 0 if self._store is None else self._log.min

    @property
    def end(self) -> int:
        if self._store is None:
            return self._kept[-1].end if self._kept else 0
        return self._log.end

    @property
    def flushed(self) -> int:
        return self._log.flushed

    @property
    def confirmed(self) -> int:
        return max(self._log.confirmed, self._joined)

    @property
    def bound(self) -> int:
        """How far the log is confirmed according to the last checkpoint on disk."""
        name = read_name(self.path)
        summary = None if name is None else read_summary(self.path, name.store_id)
        return 0 if summary is None else summary.position

    # ---- process -------------------------------------------------------------------------------------------

    def _name(self) -> StoreName:
        settings = SETTINGS
        return StoreName(
            StoreIdentity("DefaultCluster", "broker-a", self._replica.number),
            self._replica.member.store_id,
            settings.commit_log_file_bytes,
            settings.consume_queue_file_bytes,
            settings.index_slots,
            settings.index_entries,
        )

    def _settings(self) -> BrokerSettings:
        first = addresses_of(self._replica.first_members)
        return BrokerSettings(
            replication=RAFT,
            replica=self._replica.number,
            raft_members=[f"{member.store_id}@{address}" for member, address in first.items()],
            store_root=self.path,
            store=SETTINGS,
        )

    has_failed = False

    def fail_next_write(self) -> None:
        """The small files of a real store do not fail."""

    def term_file(self) -> TermFile:
        return TermFile(self.path, GROUP, self._replica.member)

    def open(self, rng: random.Random, make_node: Callable[..., RaftNode]) -> Opened:
        """Open the store as a broker does."""
        replica, saved = self._replica, self.term_file().read()
        if saved is not None and must_begin_again(self.path, saved.join_offset):
            self.durable = 0
            self.damage = self._deleted_damage = None
        self._joined = 0
        self._disk = CuttingDisk(self.path, self._rng)
        self._disks.append(self._disk)
        tables = GroupTables()
        self._executors.clear()

        def open_store(confirm: ConfirmPolicy) -> MessageStore:
            self._store = MessageStore.open(
                self.path,
                SETTINGS,
                StoreIdentity("DefaultCluster", "broker-a", replica.number),
                replica,
                store_host=Host("127.0.0.1", 10911 + 10 * replica.number),
                probe=lambda _: DiskUse(0, 1 << 40),
                confirm=confirm,
                executors=self._make_executor,
                sinks=(tables,),
            )
            return self._store

        opened = open_replica(self._settings(), replica, rng, open_store, make_node)
        self._log = opened.log
        self._tables = StoreTables(
            self.store, tables, lambda: replica.node is not None and replica.accepts_sends
        )
        self._check_recovered()
        return Opened(opened.node, opened.term_file, opened.addresses)

    def _check_recovered(self) -> None:
        """Check that all that was flushed is there, but for what was damaged."""
        if self._deleted_damage is not None and self.min < self._deleted_damage[1]:
            self.damage = self._deleted_damage
        if self.damage is None:
            self.damage = self._log.damage
        if self.damage is not None and self.end < self.durable:
            self._lose(self.end, self._kept)  # the last records are damaged
        elif self.end < self.durable:
            raise Violation(f"{self._replica} recovers only {self.end} of {self.durable} flushed bytes")
        self.durable = self.end
        self._job = None
        self._clip_damage()

    def _make_executor(self, name: str, threads: int) -> StepByStep:
        self._executors.append(StepByStep())
        return self._executors[-1]

    def lower_bound(self) -> None:
        """Opening the store has lowered the bound."""

    def turn(self) -> None:
        """Do what the owner of a store does in each turn of its loop, and let background work advance."""
        store = self.store
        store.advance()
        self._tables.save()
        if self._rng.random() < 0.3:
            self._rng.choice(self._executors).step()
        if self._disk is not None and self._rng.random() < 0.02:
            self._disk.write_back_some()
        if self.damage is not None and self.damage[0] < self.min:
            self._deleted_damage = self.damage
            self._clip_damage()
        positions = store.positions
        if not positions.min <= positions.dispatched <= positions.confirmed <= positions.written:
            raise Violation(f"{self._replica}: positions are not in order: {positions}")

    def crash(self, rng: random.Random, *, keeps_cache: bool) -> None:
        self._kept = self.tokens(0, self.end)
        if self.store.positions.written <= self._joined:
            self.durable = 0  # the log that was to begin there is still empty
        path, self._image = self._image, None
        if path is None and not keeps_cache:
            assert self._disk is not None
            path = self._disk.cut(self._next_path())
        self._end_process()
        if path is not None:
            shutil.rmtree(self.path)
            self.path = path

    def _next_path(self) -> Path:
        self._life += 1
        return self._directory / str(self._life)

    def _end_process(self) -> None:
        """Close the files of the store without writing anything, as the end of a process does."""
        store, self._store = self.store, None
        store._parts.close()  # noqa: SLF001
        store._guards.release()  # noqa: SLF001
        if self._disk is not None:
            self._disks.remove(self._disk)
            self._disk.close()
            self._disk = None

    def verify(self) -> None:
        """Close the store, and compare its consume queues and its index with its log."""
        self._finish_jobs()
        if self._job is not None:
            self.end_flush(self._job)
        self.store.close()
        report = verify(self.path)
        if not report.is_valid:
            raise Violation(f"the store of {self._replica} is not valid: {report.findings[:5]}")

    def close(self) -> None:
        if self._store is not None:
            self._end_process()

    # ---- log -----------------------------------------------------------------------------------------------

    def append_value(self, term: int, value: int) -> int:
        topic = self._tables.topic_for(value)
        properties = encode_properties({"KEYS": f"key-{value % 7}", "UNIQ_KEY": f"{value:032}"})
        body = b"%d %b" % (value, b"x" * (value * 137 % 1500))
        self.store.append(RecordDraft(topic, value % QUEUES, body, properties))
        return self.end

    def take_over(self) -> None:
        self._tables.take_over()

    def resign(self) -> None:
        self._tables.resign()

    def keep_tables(self) -> None:
        self._tables.keep()

    def queue_ends(self) -> dict[Queue, int]:
        """Return the ends of the queues of clients, after all is flushed and dispatched."""
        if self._job is not None:
            self.end_flush(self._job)
        self.store.flush_now()
        self.store.dispatch_now()
        return self._tables.queue_ends()

    def append_group_record(self, term: int, members: Members) -> tuple[GroupRecord, int]:
        record = self._log.append_group_record(term, members)
        return record, self.end

    def append(self, offset: int, records: bytes) -> None:
        self._log.append(offset, records)

    @property
    def is_new(self) -> bool:
        return self._log.is_new

    def begin_at(self, offset: int) -> None:
        self._log.begin_at(offset)
        self.durable = self._joined = offset

    def read(self, offset: int) -> bytes:
        return self._log.read(offset, READ_BYTES)

    def truncate(self, offset: int) -> None:
        if self.damage is not None and offset < self.damage[1]:
            self._lose(offset, self.tokens(offset, self.durable))
        self._log.truncate(offset)
        self.durable = min(self.durable, offset)
        self._clip_damage()

    def _lose(self, offset: int, tokens: list[Token]) -> None:
        """Count the durable records from `offset` on as lost; `tokens` lacks those in the damaged range."""
        known = self._damaged + tokens
        self.lost += [each for each in known if offset <= each.offset and each.end <= self.durable]

    def _clip_damage(self) -> None:
        """Forget the part of the damage that is outside the log now."""
        if self.damage is not None:
            begin, end = max(self.damage[0], self.min), min(self.damage[1], self.end)
            self.damage = (begin, end) if begin < end else None

    def crash_in_truncate(self, offset: int, rng: random.Random) -> None:
        """Truncate until the disk loses power before one of the syncs of the truncation."""
        assert self._disk is not None
        self.durable = min(self.durable, offset)
        self._disk.cut_before_sync(rng.randrange(4), self._next_path())
        try:
            self._log.truncate(offset)
        except (PowerLost, StoreError):  # background work that loses power fails the truncation
            if self._disk.image is None:
                raise
        self._image = self._disk.image

    def confirm(self, offset: int) -> None:
        self._log.confirm(offset)

    def checkpoint(self) -> None:
        """The store makes its own checkpoints."""

    def begin_flush(self) -> Any:
        if self._job is not None:
            return None
        job = self.store.flush_job()
        if job is None:
            return None
        job.run()
        self.durable = job.target
        self._job = job
        return job

    def end_flush(self, job: Any) -> None:
        if job is self._job:
            self._job = None
        self.store.flush_done(job)

    # ---- retention -----------------------------------------------------------------------------------------

    def trim_to(self, rng: random.Random) -> int:
        """Return the end of the first file."""
        return self.min + SETTINGS.commit_log_file_bytes

    def trim(self, offset: int) -> None:
        """Let the files below `offset` expire; those that are not dispatched yet are deleted later."""
        store = self.store
        for path in sorted((self.path / "commitlog").iterdir()):
            if int(path.name) + SETTINGS.commit_log_file_bytes <= offset:
                os.utime(path, (0, 0))
        store.retention.delete_expired()
        for _ in range(4):
            store.advance()
            self._finish_jobs()

    def _finish_jobs(self) -> None:
        for executor in self._executors:
            while executor.step():
                pass

    # ---- faults of the disk --------------------------------------------------------------------------------

    def damage_range(self, rng: random.Random) -> bool:
        """Flip a byte in one to three records that are known to be confirmed."""
        limit = min(self.bound, self.durable)
        records = [each for each in self.tokens(self.min, limit) if each.entry[1] is not None]
        if not records:
            return False
        first = rng.randrange(len(records))
        damaged = records[first : first + rng.choice((1, 3))]
        for each in damaged:
            self._flip(rng.randrange(each.offset + 88, each.end))
        self._damaged = damaged
        self.damage = (damaged[0].offset, damaged[-1].end)
        return True

    def _flip(self, offset: int) -> None:
        base = offset - offset % SETTINGS.commit_log_file_bytes
        with (self.path / "commitlog" / f"{base:020}").open("r+b") as file:
            file.seek(offset - base)
            byte = file.read(1)[0]
            file.seek(offset - base)
            file.write(bytes([byte ^ 0x10]))
            file.flush()
            os.fdatasync(file.fileno())  # it is the disk that is damaged

    def lose_from(self, rng: random.Random) -> None:
        """Replace the log from a confirmed record on by zeros: the disk had not written what it said."""
        places = [each.offset for each in self._kept if each.end <= self.bound]
        if not places:
            return
        offset = rng.choice(places)
        self._lose(offset, self._kept)
        self.durable = offset
        self._kept = [each for each in self._kept if each.end <= offset]
        for path in sorted((self.path / "commitlog").iterdir()):
            base = int(path.name)
            if base > offset:
                path.unlink()
            elif base + SETTINGS.commit_log_file_bytes > offset:
                with path.open("r+b") as file:
                    file.seek(offset - base)
                    file.write(bytes(SETTINGS.commit_log_file_bytes - (offset - base)))

    def read_range(self, offset: int, end: int) -> bytes:
        return self._log.read_range(offset, end)

    def repair(self, offset: int, records: bytes) -> bool:
        """Repair the damage, and derive all again, as a broker does after what its recovery has found."""
        self._log.repair(offset, records)
        require_rebuild(self.path)
        if self.damage is not None:
            self.damage = (offset + len(records), self.damage[1])
            self._deleted_damage = None  # it existed again, and is repaired
            self._clip_damage()
        return True

    # ---- compare -------------------------------------------------------------------------------------------

    def tokens(self, begin: int, end: int) -> list[Token]:
        """Return the records between two offsets, decoded from the bytes of the log."""
        if self._store is None:
            return [each for each in self._kept if begin <= each.offset and each.end <= end]
        found = []
        damaged = self.damage or (0, 0)
        try:
            for part in self._log.parts(max(begin, self.min), end):
                if damaged[0] <= part.offset < damaged[1]:
                    continue
                entry = (-1, None) if part.record is None else _entry(part.record)
                found.append(Token(part.offset, part.end, entry))
        except RecordDamaged:
            pass  # the records of a log that diverged begin and end elsewhere
        return found


def _entry(record: memoryview) -> Entry:
    """Return the CRC of a record, and members, deleted topics, or the value and the place of a message."""
    message = decode_record(record)
    if message.topic == GROUP_TOPIC:
        return crc32(record), decode_group_record(message.body).members
    if message.topic == META_TOPIC:
        return crc32(record), message.properties.get(DELETED_TOPICS, "")
    place = (message.topic, message.queue_id, message.queue_offset)
    return crc32(record), int(message.body.split()[0]), place

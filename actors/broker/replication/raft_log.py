"""RaftLog: the CommitLog of a broker as the log of a Raft group.

    RaftNode ──effects──→ RaftLog ──→ MessageStore ──→ CommitLog
                                          ↑
                                    RaftConfirm: confirmed is what the node says

A log of a group never ends with a blank: `read` returns a blank only with the record after it, and
`remove_unfinished_tail` removes one that a crash has left. See `actors/raft/history.py`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from actors.broker.replication.raft.renewal import forget_rebuild, require_rebuild
from actors.raft.group_record import GROUP_TOPIC, GroupRecordBody, decode_group_record, encode_group_record
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.state import LogState
from store.commitlog.holes import Hole
from store.commitlog.positions import Positions
from store.kernels import walk
from store.message.buffers import Buffer
from store.message.record import BLANK_BYTES, MAGIC, MAGIC_BLANK, RecordDraft, decode_record
from store.message_store import MessageStore
from store.store_errors import RecordDamaged

_SIZE = slice(0, 4)
SECTOR_BYTES = 512


class RaftConfirm:
    """The confirm policy of a replica in a group: what its RaftNode has confirmed and its disk has.

    A majority may have flushed what this replica has not. Its checkpoints must not be ahead of its own disk:
    a recovery that begins at a checkpoint would not see that earlier pages are lost.
    """

    def __init__(self) -> None:
        self._offset = 0

    @property
    def offset(self) -> int:
        """The offset of the last `raise_to`: what the group has confirmed."""
        return self._offset

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        """Return what the group has confirmed, as far as this replica has flushed it."""
        return min(self._offset, positions.flushed)

    def raise_to(self, offset: int) -> None:
        """Confirm the log up to CommitLog offset `offset`."""
        self._offset = max(self._offset, offset)


class LogPart(NamedTuple):
    """A record of the log, or the blank end of a file, in which case `record` is None."""

    offset: int
    end: int
    record: memoryview | None


def log_parts(store: MessageStore, begin: int, end: int) -> Iterator[LogPart]:
    """Yield the records and blanks from `begin` to `end`. Raises RecordDamaged if a size is invalid."""
    while begin < end:
        data = store.log_bytes(begin, end - begin)
        place = 0
        while place < len(data):
            head = data[place : place + BLANK_BYTES]
            size = int.from_bytes(head[_SIZE], "big")
            if not BLANK_BYTES <= size <= len(data) - place:
                raise RecordDamaged(f"no complete record is at CommitLog offset {begin + place:,}")
            is_blank = int.from_bytes(head[MAGIC:], "big", signed=True) == MAGIC_BLANK
            offset = begin + place
            yield LogPart(offset, offset + size, None if is_blank else data[place : place + size])
            place += size
        begin += place


class RaftLog:
    """What a RaftNode and its owner do with the log of one store."""

    def __init__(self, store: MessageStore, confirm: RaftConfirm, group: str, me: Member) -> None:
        """Create the log of the replica `me` of `group`, whose store was opened with the policy `confirm`."""
        self._store = store
        self._confirm = confirm
        self._group = group
        self._me = me
        self._begin = 0

    @property
    def min(self) -> int:
        """The CommitLog offset of the first byte."""
        return max(self._store.positions.min, self._begin)

    @property
    def end(self) -> int:
        """The CommitLog offset after the last byte."""
        return max(self._store.positions.written, self._begin)

    @property
    def flushed(self) -> int:
        """The CommitLog offset up to which the log is on disk."""
        return max(self._store.positions.flushed, self._begin)

    @property
    def confirmed(self) -> int:
        """The CommitLog offset up to which the group has confirmed the log; this disk may lack the end."""
        return self._confirm.offset

    @property
    def is_new(self) -> bool:
        """True if the log has no file yet, so that it can begin anywhere."""
        return not self._store.has_log_files

    def begin_at(self, offset: int) -> None:
        """Let the log, which must be new, begin at CommitLog offset `offset`: the next append is there."""
        self._begin = offset

    # ---- start ---------------------------------------------------------------------------------------------

    def remove_unfinished_tail(self) -> None:
        """Remove what a crash has left of appends that were not flushed. Raises StoreError.

        A power loss keeps any of the pages that were not flushed, so whole records may follow lost ones. A
        lost sector contains zeros; other damage may be that of acknowledged records, and is kept.
        """
        positions = self._store.positions
        for hole in self._store.holes:
            if hole.position >= positions.confirmed and self._has_lost_sector(hole):
                self._store.truncate_to(hole.position)
                break
        blank: int | None = None
        for begin, end in self._whole_ranges():
            for part in self.parts(begin, end):
                blank = part.offset if part.record is None else None
        if blank is not None:
            self._store.truncate_to(blank)

    def _has_lost_sector(self, hole: Hole) -> bool:
        """Return True if a sector of the disk that contains a part of the hole has only zeros there."""
        end = hole.position + hole.size_bytes
        data = bytes(self._store.log_bytes(hole.position, hole.size_bytes))
        first = hole.position // SECTOR_BYTES * SECTOR_BYTES
        for sector in range(first, end, SECTOR_BYTES):
            begin = max(sector - hole.position, 0)
            if not any(data[begin : sector + SECTOR_BYTES - hole.position]):
                return True
        return False

    def _whole_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges between the holes that may not be final."""
        begin = self._store.positions.confirmed
        for hole in self._store.holes:
            if hole.position >= begin:
                yield begin, hole.position
                begin = hole.position + hole.size_bytes
        yield begin, self._store.positions.written

    @property
    def damage(self) -> tuple[int, int] | None:
        """The range of the log that recovery found damaged, from the first to the last damaged record."""
        holes = self._store.holes
        return (holes[0].position, holes[-1].position + holes[-1].size_bytes) if holes else None

    def state(self, known_confirmed: int) -> LogState:
        """Return the state of the log after a start.

        The group records are those after the confirmed part; earlier ones are in the term file.
        `known_confirmed` is how far the log was confirmed before the start, also if it ends earlier now.
        """
        positions = self._store.positions
        self._confirm.raise_to(min(max(known_confirmed, positions.confirmed), positions.written))
        records = tuple(
            record for begin, end in self._whole_ranges() for record in self.group_records(begin, end)
        )
        confirmed = max(known_confirmed, positions.confirmed)
        return LogState(positions.min, positions.written, confirmed, records)

    # ---- read ----------------------------------------------------------------------------------------------

    def parts(self, begin: int, end: int) -> Iterator[LogPart]:
        """Yield the records and blanks from `begin` to `end`. Raises RecordDamaged if a size is invalid."""
        return log_parts(self._store, begin, end)

    def group_records(self, begin: int, end: int) -> Iterator[GroupRecord]:
        """Yield the group records from `begin` to `end`; a record begins with the blank before it."""
        topic = GROUP_TOPIC.encode()
        blank: int | None = None
        for part in self.parts(begin, end):
            if part.record is None:
                blank = part.offset
                continue
            if topic in bytes(part.record):
                message = decode_record(part.record)
                if message.topic == GROUP_TOPIC:
                    body = decode_group_record(message.body)
                    yield GroupRecord(part.offset if blank is None else blank, body.term, body.members)
            blank = None

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole records from `offset` on: as many as fit, at least one, and no blank at the end.

        They may end at the end of a log file, although more would fit.
        """
        data = self._store.log_bytes(offset, max_bytes)
        if (size := _records_bytes(data, offset)) > 0:
            return bytes(data[:size])
        pieces, size, kept = [], 0, 0
        for part in self.parts(offset, self.end):
            part_bytes = part.end - part.offset
            if kept and size + part_bytes > max_bytes:
                break
            pieces.append(part.record if part.record is not None else self._blank(part))
            size += part_bytes
            if part.record is not None:
                kept = len(pieces)
        return b"".join(pieces[:kept])

    def _blank(self, part: LogPart) -> memoryview:
        return self._store.log_bytes(part.offset, part.end - part.offset)

    def read_range(self, offset: int, end: int) -> bytes:
        """Return the records from `offset` to `end`, for the repair of another replica.

        Raises RecordDamaged if they are damaged here, too.
        """
        for part in self.parts(offset, end):
            if part.record is not None:
                decode_record(part.record)
        pieces = (
            part.record if part.record is not None else self._blank(part) for part in self.parts(offset, end)
        )
        return b"".join(pieces)

    # ---- write ---------------------------------------------------------------------------------------------

    def append_group_record(self, term: int, members: Members) -> GroupRecord:
        """Append a group record of this leader. Raises StoreError."""
        start = self.end
        body = encode_group_record(GroupRecordBody(self._group, term, self._me, members))
        self._store.append(RecordDraft(GROUP_TOPIC, 0, body))
        return GroupRecord(start, term, members)

    def append(self, offset: int, records: Buffer) -> None:
        """Append records of the leader's log. Raises StoreError, also if one of them is damaged."""
        self._store.append_raw(offset, records)

    def truncate(self, offset: int) -> None:
        """Remove the log from `offset` on. Raises StoreError."""
        self._store.truncate_to(offset)

    def repair(self, offset: int, records: Buffer) -> bool:
        """Overwrite damaged records with those of the leader. Raises StoreError; see `LogRepair.repair`.

        Returns True if consume queues and index may be wrong: the next start rebuilds them.
        """
        root = self._store.root
        require_rebuild(root)  # first: a replica that stops in between must rebuild, too
        must_rebuild = self._store.log_repair.repair(offset, records)
        if not must_rebuild:
            forget_rebuild(root)
        return must_rebuild

    def confirm(self, offset: int) -> None:
        """Confirm the log up to `offset`, and call the callbacks of the sends that wait for it."""
        self._confirm.raise_to(offset)
        self._store.confirm()


def _records_bytes(data: memoryview, offset: int) -> int:
    """Return how many of the log bytes at `offset` are whole records, before a blank or an invalid one."""
    found = np.zeros(walk.SCAN_FIELDS, dtype=np.int64)
    buffer = np.frombuffer(data, dtype=np.uint8)
    return int(walk.scan_records(buffer, 0, len(data), offset, False, found)[0])

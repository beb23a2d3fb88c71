"""ModelLog: a CommitLog reduced to a list of entries, with a disk that loses what was not flushed.

An entry takes one offset. It is (term, value): the value is a number that a client sent, or the members of a
group record.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.broker.replication.raft.opening import with_group_id
from actors.raft.effects import SavedTerm
from actors.raft.history import GroupRecord
from actors.raft.members import Members
from actors.raft.node import RaftNode
from actors.raft.state import LogState
from actors.raft.term_file import TermFile
from tests.sim.checks import Violation
from tests.sim.driven import GROUP, ModelStore, Opened, SimFiles, addresses_of

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica

Entry = tuple[Any, ...]
DAMAGED: Entry = (-1, None)


class FlushJob:
    """A flush under way."""

    def __init__(self, target: int, generation: int) -> None:
        self.target = self.reaches = target
        self.generation = generation


class Token(NamedTuple):
    """An entry with its place, for comparisons between logs."""

    offset: int
    end: int
    entry: Entry


class ModelLog:
    """The log of one store."""

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica
        self._files = SimFiles()
        self.store = ModelStore()
        self.entries: list[Entry | None] = []
        self.min = 0
        self.flushed = 0  # what the store believes
        self.durable = 0  # what the disk would keep
        self.confirmed = 0
        self.bound = 0  # a lower bound of confirmed, on disk
        self.lost: list[Token] = []  # what the disk lost since the replica was last complete
        self.damage: tuple[int, int] | None = None
        self._damaged: list[Token] = []  # what was in the damaged range
        self._generation = 0
        self._job: FlushJob | None = None

    @property
    def end(self) -> int:
        return len(self.entries)

    # ---- start ---------------------------------------------------------------------------------------------

    def term_file(self) -> TermFile:
        files = self._files
        return TermFile(Path(), GROUP, self._replica.member, read=files.read, replace=files.replace)

    def open(self, rng: random.Random, make_node: Callable[..., RaftNode]) -> Opened:
        """Recover the log, as `open_replica` does."""
        replica, term_file = self._replica, self.term_file()
        self._files.fails_next = self._files.has_failed = False
        saved = term_file.read()
        if saved is None:
            saved = SavedTerm(first_members=replica.first_members)
            term_file.write(saved)
        if not self.is_new and self.min < saved.join_offset:
            self._remove()
        saved = with_group_id(saved, GROUP)
        node = make_node(replica.member, saved, self.recover(), now_ms=replica.now, rng=rng)
        return Opened(node, term_file, addresses_of(saved.first_members))

    @property
    def is_new(self) -> bool:
        """True if the log can begin anywhere."""
        return not self.entries

    # ---- files ---------------------------------------------------------------------------------------------

    def fail_next_write(self) -> None:
        """Let the next write of a small file fail."""
        self._files.fails_next = True

    @property
    def has_failed(self) -> bool:
        """True if a write of this process has failed."""
        return self._files.has_failed

    # ---- tables --------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """A list of entries has no tables."""

    def resign(self) -> None:
        """See `take_over`."""

    def keep_tables(self) -> None:
        """See `take_over`."""

    # ---- append --------------------------------------------------------------------------------------------

    def append_value(self, term: int, value: int) -> int:
        self.entries.append((term, value))
        return len(self.entries)

    def append_group_record(self, term: int, members: Members) -> tuple[GroupRecord, int]:
        self.entries.append((term, members))
        end = len(self.entries)
        return GroupRecord(end - 1, term, members), end

    def append(self, offset: int, records: list[Entry]) -> None:
        assert offset == len(self.entries)
        self.entries += records

    def read(self, offset: int, limit: int = 8) -> list[Entry | None]:
        assert self.min <= offset < self.end
        return self.entries[offset : offset + limit]

    # ---- flush ---------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushJob | None:
        if self._job is not None or self.flushed == self.end:
            return None
        self._job = FlushJob(self.end, self._generation)
        return self._job

    def end_flush(self, job: FlushJob) -> None:
        self._job = None
        self.durable = max(self.durable, job.reaches)
        if self.is_valid(job):
            self.flushed = max(self.flushed, job.target)

    def is_valid(self, job: FlushJob) -> bool:
        """Return True if the log was not truncated since the flush began."""
        return job.generation == self._generation

    # ---- truncate ------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        if self.damage is not None and offset < self.damage[1]:
            self._lose(offset)
        self._cut(offset)
        self._generation += 1
        self.flushed = min(self.flushed, offset)
        self.durable = min(self.durable, offset)
        if self._job is not None:
            self._job.reaches = min(self._job.reaches, offset)

    def crash_in_truncate(self, offset: int, rng: random.Random) -> None:
        """Truncate a part only: the zeroing runs from the end backwards."""
        self.truncate(rng.randint(offset, self.end))

    def _remove(self) -> None:
        """Remove the log, of which the leader has nothing left."""
        self.damage = None
        self.truncate(0)
        self.min = self.flushed = self.durable = self.confirmed = self.bound = 0

    def begin_at(self, offset: int) -> None:
        """Begin a new log at `offset`."""
        if not self.is_new:
            raise Violation(f"a log of {self.end} entries is continued at {offset}")
        self.entries = [None] * offset
        self.min = self.flushed = self.durable = self.confirmed = self.bound = offset

    def trim_to(self, rng: random.Random) -> int:
        """Return an offset at which the log may begin after retention."""
        return rng.randint(self.min, self.bound)

    def trim(self, offset: int) -> None:
        self.min = max(self.min, offset)
        if self.damage is not None:
            begin, end = self.damage
            self.damage = (max(begin, offset), end) if offset < end else None

    # ---- confirm, crash, recover ---------------------------------------------------------------------------

    def confirm(self, offset: int) -> None:
        self.confirmed = offset

    def turn(self) -> None:
        """Do nothing: this log has no derived data."""

    def checkpoint(self) -> None:
        """Save how far the log is confirmed; only what is durable here is saved."""
        self.bound = max(self.bound, min(self.confirmed, self.durable))

    def crash(self, rng: random.Random, *, keeps_cache: bool) -> None:
        """Lose the bytes that were not flushed, from some place on; none if only the process ended."""
        end = self.end if keeps_cache else rng.randint(self.durable, self.end)
        self._cut(end)
        self._job = None
        self._generation += 1

    def lose_from(self, rng: random.Random) -> None:
        """Lose confirmed bytes: the disk had not written what it said."""
        offset = rng.randrange(self.min, self.bound)
        self._lose(offset)
        self._cut(offset)

    def _lose(self, offset: int) -> None:
        self.lost += [each for each in self._damaged if each.offset >= offset]
        self.lost += self.tokens(offset, self.durable)

    def _cut(self, offset: int) -> None:
        del self.entries[offset:]
        if self.damage is not None:
            begin, end = self.damage
            self.damage = (begin, min(end, offset)) if begin < offset else None

    def recover(self) -> LogState:
        self.flushed = self.durable = self.end  # recovery syncs what it has read
        self.confirmed = min(self.recovered_bound(), self.end)
        records = tuple(
            GroupRecord(offset, entry[0], entry[1])
            for offset, entry in enumerate(self.entries)
            if entry is not None and offset >= self.min and isinstance(entry[1], Members)
        )
        return LogState(self.min, self.end, self.recovered_bound(), records)

    def lower_bound(self) -> None:
        """Forget a bound that the log does not reach any more."""
        self.bound = min(self.bound, self.end)

    def recovered_bound(self) -> int:
        """Return the offset up to which the log is known to be confirmed after a restart."""
        return max(self.bound, self.min)

    # ---- damage --------------------------------------------------------------------------------------------

    def damage_range(self, rng: random.Random) -> bool:
        """Damage a few confirmed entries. Returns False if no entry is confirmed."""
        end = min(self.confirmed, self.durable)
        if end <= self.min:
            return False
        begin = rng.randrange(self.min, end)
        end = min(end, begin + rng.choice((1, 5)))
        self._damaged = self.tokens(begin, end)
        for offset in range(begin, end):
            self.entries[offset] = DAMAGED
        self.damage = (begin, end)
        return True

    def read_range(self, offset: int, end: int) -> list[Entry | None]:
        return self.entries[offset:end]

    def repair(self, offset: int, records: list[Entry]) -> bool:
        """Overwrite damaged entries. Returns True if the next start rebuilds what is derived from the log."""
        end = offset + len(records)
        self.entries[offset:end] = records
        if self.damage is not None:
            self.damage = (end, self.damage[1]) if end < self.damage[1] else None
        return self.damage is not None or offset % 2 == 1

    # ---- compare -------------------------------------------------------------------------------------------

    def tokens(self, begin: int, end: int) -> list[Token]:
        """Return the entries from `begin` to `end` of which this log has both ends."""
        begin = max(begin, self.min)
        found = enumerate(self.entries[begin:end], begin)
        return [Token(offset, offset + 1, entry) for offset, entry in found if entry not in (None, DAMAGED)]

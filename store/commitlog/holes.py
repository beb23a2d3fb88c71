"""Holes: damaged ranges of the CommitLog that valid records follow.

    |record|record|~~damage~~|record|record|blank|        a hole: the records after it are kept and served
    |record|record|~~damage~~0000000000000000000…         the end of the log: the damage is truncated

To distinguish the two cases, recovery searches all following bytes for a record with the right CRC whose
physicalOffset equals its position. A hole stays in the log unchanged. Readers skip consume-queue units that
point into it. The queue offsets after it do not change: they are stored in the records.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from store.commitlog.mapped_file import HEAD_BYTES, MappedFile
from store.kernels import resync, walk

_MAGIC_END = HEAD_BYTES - 1  # last byte of the magic; an append writes the first 8 bytes last


class LogFiles(Protocol):
    """Read access to the files of a log: implemented by CommitLog and by the store verification."""

    @property
    def end(self) -> int:
        """The offset after the last file."""

    def file_at(self, offset: int) -> MappedFile:
        """Return the file that contains `offset`. Raises StoreError if no file does."""

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return the bytes [offset, offset + size_bytes) of one file. Raises StoreError if not within one."""


class Hole(NamedTuple):
    """A damaged range of one file: `size_bytes` from log offset `position`."""

    position: int
    size_bytes: int
    reason: str

    def as_json(self, log: LogFiles) -> dict[str, Any]:
        """Return the hole as a JSON object; `place` is its position in the file."""
        file = log.file_at(self.position)
        return {
            "path": str(file.path),
            "place": self.position - file.base,
            "position": self.position,
            "bytes": self.size_bytes,
            "reason": self.reason,
        }


def next_valid(log: LogFiles, position: int, not_before_ms: int | None) -> int | None:
    """Return the offset of the first valid record or closing blank record after the damage at `position`.

    With `not_before_ms`, ignore blank records, and treat a record stored before that time as stale: RocketMQ
    does not zero old bytes behind the end of its log.

    Returns:
        A log offset, or None if the log ends at the damage.
    """
    file = log.file_at(position)
    place = position - file.base + 1
    while True:
        stop = file.data_end()
        following = int(resync.next_record(file.array, place, stop, file.size_bytes, file.base))
        if not_before_ms is None:
            blank = int(resync.closing_blank(file.array, place, following, file.size_bytes))
            if blank < following or following < stop:
                return file.base + blank
        elif following < stop:
            is_stale = walk.store_timestamp_at(file.array, following) < not_before_ms
            return None if is_stale else file.base + following
        if file.end >= log.end:
            return None
        file = log.file_at(file.end)
        place = 0


def torn_append_end(log: LogFiles, position: int, following: int) -> int:
    """Return the end of a torn append at `position`, or −1 if the damage has another cause.

    A kill during an append of several records leaves the append without its first 8 bytes, which are written
    last. The records of this append, from `following` on, are then the last in the log.
    """
    file = log.file_at(position)
    place = position - file.base
    if place + HEAD_BYTES > file.size_bytes or file.array[place + _MAGIC_END] != 0 or following >= file.end:
        return -1
    end = int(resync.append_end(file.array, following - file.base, file.size_bytes, file.base))
    if end == following - file.base:
        return -1
    return file.base + end if next_valid(log, file.base + end - 1, None) is None else -1


def holes_between(log: LogFiles, position: int, following: int, reason: str) -> list[Hole]:
    """Return the damaged range [position, following) as one hole per file."""
    holes = []
    while position < following:
        file = log.file_at(position)
        end = min(following, file.end)
        holes.append(Hole(position, end - position, reason))
        position = end
    return holes


def known_holes(noted: Iterable[Hole], found: Iterable[Hole], scanned_from: int, end: int) -> list[Hole]:
    """Merge the holes of an earlier scan with the holes found by a scan that began at `scanned_from`.

    Earlier holes at or after `scanned_from` or `end` are dropped.
    """
    before = [hole for hole in noted if hole.position < scanned_from and hole.position < end]
    return sorted({*before, *found})

"""Holes: damaged ranges of the CommitLog that valid records follow.

    |record|record|~~damage~~|record|record|blank|        a hole: the records after it are kept and served
    |record|record|~~damage~~0000000000000000000…         the end of the log: the damage is truncated

To distinguish the two cases, recovery searches all bytes after the damage for a record with the right CRC
whose physicalOffset equals its position. The damaged bytes of a hole stay in the log unchanged. Readers skip
consume queue units that point into a hole. The queue offsets of the records after it do not change, because
each record contains its queue offset.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from store.commitlog.mapped_file import HEAD_BYTES, MappedFile
from store.commitlog.positions import Positions
from store.kernels import resync, walk

_MAGIC_END = HEAD_BYTES - 1  # last byte of the magic; an append writes the first 8 bytes last


class LogFiles(Protocol):
    """Read access to the files of a CommitLog, for open stores (`CommitLog`) and for offline verification."""

    @property
    def end(self) -> int:
        """The CommitLog offset after the last byte of the last file."""

    def file_at(self, offset: int) -> MappedFile:
        """Return the log file that contains the CommitLog offset `offset`.

        Raises StoreError if no file does.
        """

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return the bytes at the CommitLog offsets [offset, offset + size_bytes).

        Raises StoreError if one log file does not contain them all.
        """


class Hole(NamedTuple):
    """A damaged range within one log file: `size_bytes` bytes from CommitLog offset `position` on."""

    position: int
    size_bytes: int
    reason: str

    def as_json(self, log: LogFiles) -> dict[str, Any]:
        """Return the hole as a JSON object; `place` is the byte position of the hole in its file."""
        file = log.file_at(self.position)
        return {
            "path": str(file.path),
            "place": self.position - file.base,
            "position": self.position,
            "bytes": self.size_bytes,
            "reason": self.reason,
        }


class KnownHoles:
    """The holes of an open store's log, less those that are truncated or whose files are deleted."""

    def __init__(self, positions: Positions, holes: Iterable[Hole]) -> None:
        self._positions = positions
        self._holes = tuple(holes)

    @property
    def all(self) -> Sequence[Hole]:
        """The holes in the log, in ascending order."""
        return tuple(hole for hole in self._holes if hole.position >= self._positions.min)

    def repair(self, begin: int, end: int) -> None:
        """Forget the holes between two CommitLog offsets, because valid records were written there."""
        self._holes = tuple(hole for hole in self._holes if not begin <= hole.position < end)

    def truncate_to(self, offset: int) -> None:
        """Forget the holes at or after the CommitLog offset `offset`."""
        self._holes = tuple(hole for hole in self._holes if hole.position < offset)


def next_valid(log: LogFiles, position: int, not_before_ms: int | None) -> int | None:
    """Return the offset of the first valid record or closing blank record after the damage at `position`.

    `not_before_ms` is set if RocketMQ wrote the log, which does not zero old bytes after the log's end. Blank
    records are then ignored, and a record stored before this time is taken for an old one after the end.

    Returns:
        A CommitLog offset, or None if the damage is the end of the log.
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
    """Return the CommitLog offset at which an incomplete (torn) append at `position` ends.

    A process killed while it appends several records leaves the append without its first 8 bytes, which are
    written last. The other records of this append begin at `following`, and no valid record follows them.
    Returns −1 if the damage at `position` has another cause.
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
    """Split the damaged range [position, following) of the log into holes, one per log file."""
    holes = []
    while position < following:
        file = log.file_at(position)
        end = min(following, file.end)
        holes.append(Hole(position, end - position, reason))
        position = end
    return holes


def known_holes(noted: Iterable[Hole], found: Iterable[Hole], scanned_from: int, end: int) -> list[Hole]:
    """Merge the holes known from an earlier scan with the holes that a new scan found.

    The new scan began at CommitLog offset `scanned_from`. Earlier holes at or after `scanned_from` are
    dropped, because the new scan covers them, and so are holes at or after `end`, the end of the log.
    """
    before = [hole for hole in noted if hole.position < scanned_from and hole.position < end]
    return sorted({*before, *found})

"""Holes: damage in the log with sound records behind it.

    |record|record|~~damage~~|record|record|blank|        a hole: what follows it is kept, and served
    |record|record|~~damage~~0000000000000000000…         the end of the log: the damage is cut off

The difference is found by looking for the next record that names its own place and has the right CRC, through
all files that follow. A hole stays in the log as it is. Units that lead into it are passed over by readers,
and the queue offsets behind it do not move: they stand in the records themselves.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from store.commitlog.mapped_file import HEAD_BYTES, MappedFile
from store.kernels import resync, walk

_MAGIC_END = HEAD_BYTES - 1  # the last of the bytes that an append writes last


class LogFiles(Protocol):
    """The files of a log, as a broker has them open or as a verification sees them."""

    @property
    def end(self) -> int:
        """The offset after the last file."""

    def file_at(self, offset: int) -> MappedFile:
        """The file that holds `offset`. Raises StoreError."""

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes of one file. Raises StoreError."""


class Hole(NamedTuple):
    """`size_bytes` of damage at log offset `position`, in one file."""

    position: int
    size_bytes: int
    reason: str

    def as_json(self, log: LogFiles) -> dict[str, Any]:
        """What is told of it; `place` is the byte in the file."""
        file = log.file_at(self.position)
        return {
            "path": str(file.path),
            "place": self.position - file.base,
            "position": self.position,
            "bytes": self.size_bytes,
            "reason": self.reason,
        }


def next_valid(log: LogFiles, position: int, not_before_ms: int | None) -> int | None:
    """Where behind the damage at `position` a sound record or a closing blank stands; None at the log's end.

    With `not_before_ms` only records count, and only those not stored before then.
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


def unfinished_end(log: LogFiles, position: int, following: int) -> int:
    """Where an append that a kill cut short at `position` ends; −1 when the damage is of another kind.

    Such an append lacks its head, and all that stands behind it is the rest of it, from `following` on.
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
    """The damage in [position, following), file by file."""
    holes = []
    while position < following:
        file = log.file_at(position)
        end = min(following, file.end)
        holes.append(Hole(position, end - position, reason))
        position = end
    return holes


def known_holes(noted: Iterable[Hole], found: Iterable[Hole], scanned_from: int, end: int) -> list[Hole]:
    """The holes noted before that lie where was not looked now, and those that were found now."""
    before = [hole for hole in noted if hole.position < scanned_from and hole.position < end]
    return sorted({*before, *found})

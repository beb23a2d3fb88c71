"""CommitLog: all records of all queues in the order they came, in files of one size named by their first
offset.

    commitlog/00000000000000000000  |record|record|…|blank|      a blank closes a file that the next record
    commitlog/00000000001073741824  |record|record|00000…        does not fit into (store format, section 1)

It is the truth (design law 1); everything else is derived from it.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from store.commitlog.log_paths import LogPaths
from store.commitlog.mapped_file import HEAD_BYTES, MappedFile, file_name
from store.commitlog.positions import Positions
from store.disk.residency import RECENT_BYTES, FileRange, NotResident, Residency
from store.disk.retired import RetiredFile
from store.kernels import walk
from store.logs import get_logger
from store.message.buffers import Buffer
from store.message.record import BLANK_BYTES, encode_blank
from store.store_errors import RecordTooLarge, StoreError

_log = get_logger(__name__)


_READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


class CommitLog:
    """The log's files. Appends go through `reserve` and `write_at`; positions are kept in `positions`."""

    def __init__(
        self,
        paths: LogPaths,
        file_bytes: int,
        positions: Positions,
        *,
        max_open_files: int = 512,
        read_only: bool = False,
        residency: Residency | None = None,
    ) -> None:
        """Look at the files that are there. Raises StoreError for what does not belong there."""
        self.paths = paths
        self.file_bytes = file_bytes
        self.positions = positions
        self.residency = residency or Residency()
        self._read_only = read_only
        self._max_open_files = max_open_files
        self._directory_of = paths.scan(file_bytes)
        self._bases = list(self._directory_of)
        self._open: OrderedDict[int, MappedFile] = OrderedDict()
        self._last: MappedFile | None = None  # the file that appends go to
        self.dirty_directories: set[Path] = set()
        self.make_file: Callable[[int], MappedFile] = lambda base: paths.make(base, file_bytes)
        """Gives the file at an offset: made now, unless the allocate service has it ready."""
        if not read_only:
            paths.remove_empty_file(self.end)

    @property
    def bases(self) -> Sequence[int]:
        """The first offsets of all files, in order; those made ahead of need come in when they are taken."""
        return self._bases

    def path_of(self, base: int) -> Path:
        """The file that begins at `base`."""
        return self._directory_of[base] / file_name(base)

    @property
    def directories(self) -> Sequence[Path]:
        """Where new files are made."""
        return self.paths.writable

    @property
    def end(self) -> int:
        """The offset after the last file."""
        return self._bases[-1] + self.file_bytes if self._bases else 0

    def base_of(self, offset: int) -> int:
        """The first offset of the file that `offset` stands in."""
        first = self._bases[0] if self._bases else 0
        return offset - (offset - first) % self.file_bytes

    def file_at(self, offset: int) -> MappedFile:
        """The mapped file that holds `offset`. Raises StoreError when no file does."""
        base = self.base_of(offset)
        file = self._open.get(base)
        if file is not None:
            self._open.move_to_end(base)
            return file
        if not self._bases or not self._bases[0] <= base <= self._bases[-1]:
            raise StoreError(
                f"offset {offset:,} is outside the log ({self.positions.min:,} to {self.end:,})",
                str(self.paths),
            )
        file = self._open[base] = self._map(base)
        self._close_surplus()
        return file

    def _map(self, base: int) -> MappedFile:
        path = self.path_of(base)
        try:
            return MappedFile(path, base, self.file_bytes, copy_on_write=self._read_only)
        except OSError as error:
            if path.parent not in self.paths.read_only or error.errno not in _READ_ONLY_ERRORS:
                raise
            return MappedFile(path, base, self.file_bytes, copy_on_write=True)

    def _close_surplus(self) -> None:
        """Close the files longest unused; those not flushed yet stay, as their descriptors are needed."""
        surplus = len(self._open) - self._max_open_files
        if surplus <= 0:
            return
        for base in list(self._open)[:-1]:
            if surplus > 0 and base + self.file_bytes <= self.positions.flushed:
                self._open.pop(base).close()
                surplus -= 1

    # ---- append --------------------------------------------------------------------------------------------

    def reserve(self, size_bytes: int) -> int:
        """Where an append of `size_bytes` will stand: closes the file with a blank and goes on to the next if
        need be.

        Raises RecordTooLarge when no file can hold it, OSError when there is no space for the next file.
        """
        last = self._last
        written = self.positions.written
        if last is not None and written + size_bytes + BLANK_BYTES <= last.base + last.size_bytes:
            return written
        return self._reserve_in_next(size_bytes)

    def _reserve_in_next(self, size_bytes: int) -> int:
        if size_bytes + BLANK_BYTES > self.file_bytes:
            raise RecordTooLarge(
                f"records of {size_bytes:,} bytes do not fit into a log file of {self.file_bytes:,} bytes "
                "(raise commit_log_file_bytes for a new store, or send less at once)"
            )
        written = self.positions.written
        if self._last is None and self._bases and written < self.end:
            self._last = self._file_for_append(written)
            return self.reserve(size_bytes)
        if self._last is not None and written < self._last.end:
            following = self._file_for_append(self._last.end)  # first: a full disk must leave this file open
            self._last.write_at(written - self._last.base, [encode_blank(self._last.end - written)])
            self.positions.written = self._last.end
        else:
            following = self._file_for_append(written)
        self._last = following
        return self.positions.written

    def _file_for_append(self, base: int) -> MappedFile:
        if base >= self.end or not self._bases:
            file = self.make_file(base)
            self._bases.append(base)
            self._directory_of[base] = file.path.parent
            self._open[base] = file
            self.dirty_directories.add(file.path.parent)
            self._close_surplus()
            return file
        file = self.file_at(base)
        if not file.is_writable:
            raise StoreError("the log goes on in this file, and it cannot be written", file.path)
        return file

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write what was reserved: the one way into the log. Raises OSError."""
        file = self._last
        if file is None or not file.base <= position < file.end:
            raise StoreError(f"position {position:,} has not been reserved", str(self.paths))
        file.write_at(position - file.base, buffers)
        self.positions.written = position + sum(map(len, buffers))

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes as another log has them, blanks included.

        Raises StoreError when `offset` is not `written`.
        """
        if not self._bases and self.positions.written == 0:
            self.positions.set_all(offset, offset)  # a fresh replica begins where it is told
        if offset != self.positions.written:
            raise StoreError(
                f"raw bytes for {offset:,}, but the log is written to {self.positions.written:,}"
            )
        rest = memoryview(data)
        while len(rest):
            file = self._file_for_append(self.base_of(offset) if self._bases else offset)
            self._last = file
            part = rest[: file.end - offset]
            file.write_at(offset - file.base, [part])
            offset += len(part)
            self.positions.written = offset
            rest = rest[len(part) :]

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on: later files go, the rest of its own file becomes zeros."""
        # From the end: a kill in between must not leave a gap.
        for base in [base for base in reversed(self._bases) if base > self.base_of(offset)]:
            self._remove(base)
        if self._bases and self._bases[0] <= offset < self.end:
            file = self.file_at(offset)
            file.zero_from(offset - file.base)
            os.fdatasync(file.descriptor)  # else what was dropped might come back behind what is written next
        self._last = None

    def _remove(self, base: int) -> None:
        file = self._open.pop(base, None)
        if file is not None:
            file.close()
        self.path_of(base).unlink()
        self._bases.remove(base)
        self.dirty_directories.add(self._directory_of.pop(base))
        _log.info("log_file_removed", base=base)

    def retire_first(self) -> RetiredFile:
        """Forget the oldest file; whoever takes it unlinks it, and lets go when no slice of it is left."""
        base = self._bases.pop(0)
        file = self._open.pop(base, None)
        path = self.path_of(base)
        self.dirty_directories.add(self._directory_of.pop(base))
        return RetiredFile(path, *([] if file is None else [file.retire()]))

    # ---- read ----------------------------------------------------------------------------------------------

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """The bytes [offset, offset + size_bytes), which stand in one file and below `written`.

        Raises StoreError, and NotResident where it must not wait.
        """
        if not self.positions.min <= offset <= offset + size_bytes <= self.positions.written:
            raise StoreError(
                f"bytes {offset:,} to {offset + size_bytes:,} are outside the log "
                f"({self.positions.min:,} to {self.positions.written:,})"
            )
        file = self.file_at(offset)
        place = offset - file.base
        if place + size_bytes > file.size_bytes:
            raise StoreError(f"{size_bytes:,} bytes lead over the file's end", file.path, place)
        if self.may_be_cold(offset):
            self.residency.require(file, place, place + size_bytes)
        return file.view[place : place + size_bytes]

    def record_at(self, offset: int) -> memoryview:
        """The record that stands at `offset`, checked with its CRC.

        Raises StoreError when there is none, and NotResident where it must not wait.
        """
        if not self.positions.min <= offset < self.positions.written:
            raise StoreError(f"offset {offset:,} is outside the log", str(self.paths))
        file = self.file_at(offset)
        place = offset - file.base
        limit = min(self.positions.written, file.end) - file.base
        if self.may_be_cold(offset) and (lacks := self.missing_record_range(offset)) is not None:
            raise NotResident([lacks])
        size = walk.check_record_at(file.array, place, limit, file.base, True)
        if size <= 0:
            raise StoreError(walk.REASONS.get(size, "only a blank stands here"), file.path, place)
        return file.view[place : place + size]

    def may_be_cold(self, offset: int) -> bool:
        """Whether a read here must ask for the page cache first: it may not wait, and this is not fresh."""
        return self.residency.is_required and offset < self.positions.written - RECENT_BYTES

    def missing_record_range(self, offset: int) -> FileRange | None:
        """What of the record at `offset` is not in the page cache; None where all is, or no record can be."""
        if not self.positions.min <= offset < self.positions.written:
            return None
        file = self.file_at(offset)
        place = offset - file.base
        limit = min(self.positions.written, file.end) - file.base
        lacks = self.residency.lacking(file, place, min(place + HEAD_BYTES, limit))
        if lacks is not None:
            return lacks
        size = int.from_bytes(file.view[place : place + 4], "big")
        return self.residency.lacking(file, place, min(place + max(size, HEAD_BYTES), limit))

    def descriptors(self, begin: int, end: int) -> list[int]:
        """The descriptors of the files that [begin, end) lies in."""
        found = []
        while begin < end:
            file = self.file_at(begin)
            found.append(file.descriptor)
            begin = file.end
        return found

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._last = None

    def remove_unused_files(self) -> None:
        """Remove files that were allocated ahead and hold nothing, as RocketMQ does at an orderly end."""
        unused = [base for base in self._bases if base >= self.positions.written and base > self._bases[0]]
        for base in reversed(unused):
            self._remove(base)

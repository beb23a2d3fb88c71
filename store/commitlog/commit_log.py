"""CommitLog: the records of all queues in arrival order, in files of equal size named by their first offset.

    commitlog/00000000000000000000  |record|record|…|blank|      a blank record fills the end of a file in
    commitlog/00000000001073741824  |record|record|00000…        which the next record does not fit

See docs/store-format.md#commitlog. The CommitLog is the source of truth (docs/design.md#invariant-1); consume
queues and index files are derived from it.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from store.commitlog.log_paths import LogPaths
from store.commitlog.mapped_file import HEAD_BYTES, MappedFile, file_name
from store.commitlog.positions import Positions
from store.common.logs import get_logger
from store.disk.files import sync_directory
from store.disk.residency import RECENT_BYTES, FileRange, NotResident, Residency
from store.disk.retired import RetiredFile
from store.kernels import walk
from store.message.buffers import Buffer
from store.message.record import BLANK_BYTES, encode_blank
from store.store_errors import RecordTooLarge, StoreError

_log = get_logger(__name__)


_READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


class CommitLog:
    """The files of one CommitLog.

    Records are appended in two steps, `reserve` and `write_at`. Both update `positions`.
    """

    def __init__(
        self,
        paths: LogPaths,
        file_bytes: int,
        positions: Positions,
        *,
        max_open_files: int = 512,
        read_only: bool = False,
        residency: Residency | None = None,
        make_file: Callable[[int], MappedFile] | None = None,
    ) -> None:
        """Scan the directories for log files.

        Args:
            paths: The directories of the log.
            file_bytes: Size of each file.
            positions: The positions of this log, shared with the other parts of the store.
            max_open_files: Number of mapped files above which flushed, least recently used files are closed.
            read_only: Map files copy-on-write, and change nothing on disk.
            residency: Checks whether reads would wait for the disk.
            make_file: Returns the new file that begins at a CommitLog offset; None: it is allocated when it
                is needed.

        Raises:
            StoreError: A directory contains other files, or a log file is missing or has the wrong size.
        """
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
        self._make_file = make_file or (lambda base: paths.make(base, file_bytes))
        if not read_only:
            paths.remove_empty_file(self.end)

    @property
    def bases(self) -> Sequence[int]:
        """The CommitLog offsets at which the files begin, ascending.

        A file allocated ahead is included only when appends have reached it.
        """
        return self._bases

    def path_of(self, base: int) -> Path:
        """Return the path of the file that begins at CommitLog offset `base`."""
        return self._directory_of[base] / file_name(base)

    @property
    def directories(self) -> Sequence[Path]:
        """The directories in which new files are created."""
        return self.paths.writable

    @property
    def end(self) -> int:
        """The CommitLog offset after the last byte of the last file; 0 if there are no files."""
        return self._bases[-1] + self.file_bytes if self._bases else 0

    def base_of(self, offset: int) -> int:
        """Return the CommitLog offset at which the file that contains `offset` begins."""
        first = self._bases[0] if self._bases else 0
        return offset - (offset - first) % self.file_bytes

    def file_at(self, offset: int) -> MappedFile:
        """Return the mapped file that contains `offset`. Raises StoreError if no file does."""
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

    def spare_descriptors(self) -> int:
        """Return how many further descriptors may be opened: two per file, as mmap has its own."""
        return 2 * max(self._max_open_files - len(self._open), 0)

    def _close_surplus(self) -> None:
        """Close the least recently used files, so that at most `max_open_files` are mapped.

        Unflushed files stay open: the flush needs their descriptors.
        """
        surplus = len(self._open) - self._max_open_files
        if surplus <= 0:
            return
        for base in list(self._open)[:-1]:  # not the last one, which the caller is about to use
            if surplus > 0 and base + self.file_bytes <= self.positions.flushed:
                self._open.pop(base).close()
                surplus -= 1

    # ---- append --------------------------------------------------------------------------------------------

    def reserve(self, size_bytes: int) -> int:
        """Return the CommitLog offset at which the caller must write the next `size_bytes` bytes.

        If they do not fit in the current file, the end of this file is filled with a blank record, and the
        next file is begun (a roll).

        Raises:
            RecordTooLarge: `size_bytes` do not fit in any file.
            OSError: There is no space for the next file.
        """
        last = self._last
        written = self.positions.written
        # RocketMQ's readers expect a blank record after the last one of a file.
        if last is not None and written + size_bytes + BLANK_BYTES <= last.base + last.size_bytes:
            return written
        return self._reserve_in_next(size_bytes)

    @property
    def room_bytes(self) -> int:
        """Bytes that can be appended to the current file; 0 if the next append begins or opens a file."""
        last = self._last
        return 0 if last is None else last.end - self.positions.written - BLANK_BYTES

    def _reserve_in_next(self, size_bytes: int) -> int:
        if size_bytes + BLANK_BYTES > self.file_bytes:
            raise RecordTooLarge(
                f"records of {size_bytes:,} bytes do not fit into a log file of {self.file_bytes:,} bytes "
                "(send smaller messages or batches, or create a store with a larger commit_log_file_bytes)"
            )
        written = self.positions.written
        if self._last is None and self._bases and written < self.end:
            self._last = self._file_for_append(written)
            return self.reserve(size_bytes)
        if self._last is not None and written < self._last.end:
            # Get the next file before the blank record closes this one: if the disk is full, small appends
            # must still be possible.
            following = self._file_for_append(self._last.end)
            self._last.write_at(written - self._last.base, [encode_blank(self._last.end - written)])
            self.positions.written = self._last.end
        else:
            following = self._file_for_append(written)
        self._last = following
        return self.positions.written

    def _file_for_append(self, base: int) -> MappedFile:
        if base >= self.end or not self._bases:
            file = self._make_file(base)
            self._bases.append(base)
            self._directory_of[base] = file.path.parent
            self._open[base] = file
            self.dirty_directories.add(file.path.parent)
            self._close_surplus()
            return file
        file = self.file_at(base)
        if not file.is_writable:
            raise StoreError(
                "the next record must be appended to this file, but it is read-only: make it writable",
                file.path,
            )
        return file

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write `buffers` contiguously at the offset that `reserve` returned. Advance `positions.written`.

        Raises OSError.
        """
        file = self._last
        if file is None or not file.base <= position < file.end:
            raise StoreError(f"offset {position:,} was not reserved before the write", str(self.paths))
        file.write_at(position - file.base, buffers)
        self.positions.written = position + sum(map(len, buffers))

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Write bytes from the log of another replica unchanged, including blank records.

        `offset` is the end of this log, or the first offset of an empty one. The bytes must fit into one
        file. Raises OSError, StoreError.
        """
        file = self._last = self._file_for_append(self.base_of(offset) if self._bases else offset)
        file.write_at(offset - file.base, [data])
        self.positions.written = offset + len(data)

    def truncate_to(self, offset: int) -> None:
        """Drop all records from CommitLog offset `offset` on.

        Later files are removed, and the file that contains `offset` is filled with zeros from there. When
        this returns, the disk has it too. Raises OSError.
        """
        # Remove the last file first: a kill in between must not leave a gap between files.
        removed = [base for base in reversed(self._bases) if base > self.base_of(offset)]
        for base in removed:
            self._remove(base)
        # Before the zeros: a power loss must not bring back records of the removed files after a hole.
        for directory in self.dirty_directories if removed else ():
            sync_directory(directory)
        if self._bases and self._bases[0] <= offset < self.end:
            file = self.file_at(offset)
            file.zero_from(offset - file.base)
            # Without the sync, a crash could restore the dropped records behind newly written ones.
            os.fdatasync(file.descriptor)
        self._last = None

    def has_record_at(self, offset: int) -> bool:
        """Return True if the header of a valid record, or of the blank end of a file, is at `offset`."""
        if not self.positions.min <= offset < self.positions.written:
            return False
        file = self.file_at(offset)
        place = offset - file.base
        return bool(walk.check_record_at(file.array, place, file.size_bytes, file.base, False) >= walk.BLANK)

    def _remove(self, base: int) -> None:
        file = self._open.pop(base, None)
        if file is not None:
            file.close()
        self.path_of(base).unlink()
        self._bases.remove(base)
        self.dirty_directories.add(self._directory_of.pop(base))
        _log.info("commit_log_file_removed", base_offset=base)

    def retire_first(self) -> RetiredFile:
        """Remove the oldest file from the list of log files, and return it for deletion from the disk.

        The caller must call `remove` of the returned file until it succeeds.
        """
        base = self._bases.pop(0)
        file = self._open.pop(base, None)
        path = self.path_of(base)
        self.dirty_directories.add(self._directory_of.pop(base))
        return RetiredFile(path, *([] if file is None else [file.retire()]))

    # ---- read ----------------------------------------------------------------------------------------------

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return the bytes at the CommitLog offsets [offset, offset + size_bytes), without copying them.

        Raises:
            StoreError: The range is not within the written part of the log, or spans two files.
            NotResident: Reading would wait for the disk, in `resident_only` mode.
        """
        if not self.positions.min <= offset <= offset + size_bytes <= self.positions.written:
            raise StoreError(
                f"bytes {offset:,} to {offset + size_bytes:,} are outside the log "
                f"({self.positions.min:,} to {self.positions.written:,})"
            )
        file = self.file_at(offset)
        place = offset - file.base
        if place + size_bytes > file.size_bytes:
            raise StoreError(f"a range of {size_bytes:,} bytes exceeds the end of the file", file.path, place)
        if self.may_be_cold(offset):
            self.residency.require(file, place, place + size_bytes)
        return file.view[place : place + size_bytes]

    def record_at(self, offset: int) -> memoryview:
        """Return the bytes of the record at CommitLog offset `offset`, after checking its structure and CRC.

        Raises:
            StoreError: No valid record starts at `offset`.
            NotResident: Reading would wait for the disk, in `resident_only` mode.
        """
        if not self.positions.min <= offset < self.positions.written:
            raise StoreError(f"offset {offset:,} is outside the log", str(self.paths))
        file = self.file_at(offset)
        place = offset - file.base
        limit = min(self.positions.written, file.end) - file.base
        if self.may_be_cold(offset) and (missing := self.missing_record_range(offset)) is not None:
            raise NotResident([missing])
        size = walk.check_record_at(file.array, place, limit, file.base, True)
        if size <= 0:
            raise StoreError(
                walk.REASONS.get(size, "a blank record is stored here, not a message"), file.path, place
            )
        return file.view[place : place + size]

    def may_be_cold(self, offset: int) -> bool:
        """Return True if the caller must check the page cache before it reads at `offset`.

        That is the case if reads must not wait for the disk and the bytes were not written recently.
        """
        return self.residency.is_required and offset < self.positions.written - RECENT_BYTES

    def missing_record_range(self, offset: int) -> FileRange | None:
        """Return the byte range of the record at `offset` that must be read from disk first.

        Returns None if the whole record is in the page cache, or if `offset` is outside the log.
        """
        if not self.positions.min <= offset < self.positions.written:
            return None
        file = self.file_at(offset)
        place = offset - file.base
        limit = min(self.positions.written, file.end) - file.base
        missing = self.residency.missing_range(file, place, min(place + HEAD_BYTES, limit))
        if missing is not None:
            return missing
        size = int.from_bytes(file.view[place : place + 4], "big")
        return self.residency.missing_range(file, place, min(place + max(size, HEAD_BYTES), limit))

    def descriptors(self, begin: int, end: int) -> list[int]:
        """Return the file descriptors of the log files that contain the CommitLog offsets [begin, end)."""
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
        """Remove the files after the last record, which are empty, as RocketMQ does on a clean shutdown."""
        unused = [base for base in self._bases if base >= self.positions.written and base > self._bases[0]]
        for base in reversed(unused):
            self._remove(base)

"""Residency: checks which bytes of the store's files are resident, and loads the others.

The thread that owns a store never waits for disk reads (docs/design.md#invariant-4). In the context
`store.resident_only`, a read that would wait raises `NotResident` with the missing ranges. `WarmJob` reads
these ranges into the page cache in another thread, and the caller repeats the read. Between the two reads,
the caller keeps only file names, so the repeated read sees the effects of retention or truncation meanwhile.

A range is resident if its pages are in the page cache. A long range that an earlier process wrote must also
have been read by a thread of this process: pages that the kernel read ahead are cached, but on a virtual
machine the first access to each may take 10 µs, which blocks the event loop for 2.4 ms per MiB
(`raymq bench interference`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol

from store.common.bounded_dict import BoundedDict

PAGE_BYTES = mmap.PAGESIZE
# This many bytes at the end of the log are assumed to be resident, because they were written recently.
RECENT_BYTES = 4 * 1024 * 1024
# Records with a gap smaller than this between them are read with one request.
JOINED_GAP_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
_CHECKED_PAGES_MAX = 64 * 1024 * 1024 // PAGE_BYTES
READ_AHEAD_FROM_BYTES = 256 * 1024
"""Length in bytes from which on a range counts as long, so that a read of it needs extra care.

Reading a long range also starts readahead of the same length after it.
"""
_SEEN_CHUNK_BYTES = 64 * 1024
# Twice the 8 MiB that Linux kernels may read ahead on their own.
_SEEN_CHUNKS_AHEAD = 16 * 1024 * 1024 // _SEEN_CHUNK_BYTES
_SEEN_FILES_MAX = 64
# A read of many consume-queue units is usually followed by a read of the next units: read these ahead.
_LONG_UNITS_BYTES = 16 * 1024
_UNITS_AHEAD_BYTES = READ_AHEAD_FROM_BYTES - PAGE_BYTES
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)

# PyDLL keeps the GIL: the call takes a microsecond, releasing the GIL would take longer.
_mincore = ctypes.PyDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class FileRange(NamedTuple):
    """The bytes [begin, end) of the file at `path`."""

    path: str
    begin: int
    end: int


class NotResident(Exception):
    """Raised instead of waiting for the disk. `ranges` are the parts of files that must be read first."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class Mapped(Protocol):
    """The attributes of a `MappedFile` that `Residency` uses."""

    @property
    def address(self) -> int:
        """The memory address of the first byte of the file."""

    @property
    def base(self) -> int:
        """The CommitLog offset of the first byte of the file."""

    @property
    def size_bytes(self) -> int:
        """The length of the file in bytes."""

    @property
    def name(self) -> str:
        """The path of the file."""


class Residency:
    """Checks whether bytes of one store's files are resident.

    Inside the context `with residency:`, reads of the store raise NotResident instead of waiting for the
    disk.
    """

    __slots__ = ("_pages", "_pages_address", "_seen", "_written_from", "is_required")

    def __init__(self, written_from: Callable[[], int] = lambda: 0) -> None:
        """Create the checks of one store.

        `written_from` returns the log offset from which on this process wrote the log, and has therefore
        accessed its pages.
        """
        self.is_required = False
        self._written_from = written_from
        self._pages = bytearray(_CHECKED_PAGES_MAX)
        self._pages_address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        # by file: for each chunk, 1 if this process has read it
        self._seen = BoundedDict[str, bytearray](_SEEN_FILES_MAX)

    def __enter__(self) -> Residency:
        self.is_required = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_required = False

    def missing_range(self, file: Mapped, begin: int, end: int) -> FileRange | None:
        """Return the range that must be read to make the bytes [begin, end) of a mapped file resident.

        That is the range from the first uncached page to the last, or all of a long range that this process
        has not read before. Returns None if all bytes are resident. Only the first 64 MiB are checked.
        """
        missing = self.uncached_range(file, begin, end)
        if end - begin < READ_AHEAD_FROM_BYTES or file.base + begin >= self._written_from():
            return missing
        seen = self._seen_of(file)
        first, stop = begin // _SEEN_CHUNK_BYTES, -(-end // _SEEN_CHUNK_BYTES)
        if missing is not None:
            # Reading it triggers readahead, so the chunks after it need a first access again.
            seen[stop : stop + _SEEN_CHUNKS_AHEAD] = bytes(len(seen[stop : stop + _SEEN_CHUNKS_AHEAD]))
        if seen.find(0, first, stop) >= 0:
            seen[first:stop] = b"\x01" * (stop - first)
            return FileRange(file.name, begin, end)
        return missing

    def _seen_of(self, file: Mapped) -> bytearray:
        seen = self._seen.get(file.name)
        if seen is None:
            seen = self._seen[file.name] = bytearray(-(-file.size_bytes // _SEEN_CHUNK_BYTES))
        return seen

    def uncached_range(self, file: Mapped, begin: int, end: int) -> FileRange | None:
        """Return the smallest range that contains all pages of [begin, end) that are not in the page cache.

        Returns None if all pages are cached, or if the operating system cannot report this.
        """
        first = begin - begin % PAGE_BYTES
        pages = min(-(-(end - first) // PAGE_BYTES), _CHECKED_PAGES_MAX)
        if _mincore(file.address + first, pages * PAGE_BYTES, self._pages_address):
            return None  # the kernel cannot tell: the read may wait
        missing = self._pages.find(0, 0, pages)
        if missing < 0:
            return None
        stop = first + (self._pages.rfind(0, 0, pages) + 1) * PAGE_BYTES
        return FileRange(file.name, first + missing * PAGE_BYTES, min(stop, file.size_bytes))

    def require(self, file: Mapped, begin: int, end: int) -> None:
        """Raise NotResident unless the bytes [begin, end) of a mapped file are resident."""
        missing = self.missing_range(file, begin, end)
        if missing is not None:
            raise NotResident([missing])

    def pread(self, descriptor: int, size_bytes: int, place: int, path: str) -> bytes:
        """Read `size_bytes` bytes at byte position `place` of a file; `path` is used in errors.

        Raises:
            OSError: The read failed.
            NotResident: The read would wait for the disk, inside the context `with residency:`.
        """
        if not self.is_required or not _NO_WAIT:
            return os.pread(descriptor, size_bytes, place)
        into = bytearray(size_bytes)
        try:
            count = os.preadv(descriptor, [into], place, _NO_WAIT)
        except BlockingIOError:
            count = 0
        except OSError:  # the file system does not support RWF_NOWAIT; a real error is raised again here
            return os.pread(descriptor, size_bytes, place)
        if count < size_bytes:
            if os.fstat(descriptor).st_size < place + size_bytes:
                return bytes(into[:count])
            ahead_bytes = _UNITS_AHEAD_BYTES if size_bytes >= _LONG_UNITS_BYTES else 0
            raise NotResident([FileRange(path, place, place + max(size_bytes, ahead_bytes))])
        return bytes(into)


class WarmJob:
    """Reads file ranges into the page cache. `run` may be called in any thread; it releases the GIL."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self.ranges = ranges

    def run(self) -> None:
        """Read all ranges.

        Files that are missing or unreadable are skipped: the caller gets the error when it repeats its read.
        """
        scratch = memoryview(bytearray(READ_BYTES))
        for path, begin, end in self.ranges:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError:
                continue
            try:
                _read_through(descriptor, begin, end, scratch)
            except OSError:
                continue
            finally:
                os.close(descriptor)


def _read_through(descriptor: int, begin: int, end: int, scratch: memoryview) -> None:
    """Read the bytes [begin, end) of a file into the page cache, and discard them. Raises OSError."""
    if end - begin >= READ_AHEAD_FROM_BYTES:
        # A long read is usually followed by the next range: start its readahead now.
        os.posix_fadvise(descriptor, end, end - begin, os.POSIX_FADV_WILLNEED)
    place = begin
    while place < end:
        count = os.preadv(descriptor, [scratch[: end - place]], place)
        if count == 0:
            return
        place += count

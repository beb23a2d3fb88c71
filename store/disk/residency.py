"""Residency: which bytes of the store's files are resident, and how the others become so.

The thread that owns a store never waits for the disk to read (design law 4). Within `store.resident_only` a
read that would wait raises `NotResident` with the missing ranges; `WarmJob` reads them in another thread, and
then the read is repeated. It keeps nothing but file names over the wait, so it sees the store as it is then,
whatever retention or a truncation has done.

A range is resident if its pages are in the page cache and, if it is long and of an earlier process's log, a
thread has read it through once: what the kernel has read ahead is cached, but on a virtual machine the first
access to each page may cost 10 µs, 2.4 ms of the loop per mebibyte (`raymq bench interference`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol

PAGE_BYTES = mmap.PAGESIZE
# The last bytes of the log are taken to be resident without a check: they have just been written.
RECENT_BYTES = 4 * 1024 * 1024
# Records with a smaller gap between them are read in one piece.
JOINED_GAP_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
_CHECKED_PAGES_MAX = 64 * 1024 * 1024 // PAGE_BYTES
READ_AHEAD_FROM_BYTES = 256 * 1024
"""A range of this length is long: as much after it is read ahead."""
_SEEN_CHUNK_BYTES = 64 * 1024
# Kernels read up to 8 MiB ahead by themselves.
_SEEN_CHUNKS_AHEAD = 16 * 1024 * 1024 // _SEEN_CHUNK_BYTES
_SEEN_FILES_MAX = 64
# A read of many units is usually followed by one of the next.
_LONG_UNITS_BYTES = 16 * 1024
_UNITS_AHEAD_BYTES = READ_AHEAD_FROM_BYTES - PAGE_BYTES
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)

# PyDLL: the call takes a microsecond, and releasing the GIL would take longer.
_mincore = ctypes.PyDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class FileRange(NamedTuple):
    """Bytes [begin, end) of a file."""

    path: str
    begin: int
    end: int


class NotResident(Exception):
    """A read would have waited for the disk: these ranges are not resident."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class Mapped(Protocol):
    """What is used of a `MappedFile`."""

    @property
    def address(self) -> int:
        """The address of its first byte in memory."""

    @property
    def base(self) -> int:
        """The offset of its first byte in the log."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    @property
    def name(self) -> str:
        """The file's path."""


class Residency:
    """Residency of one store's files. Used as a context: inside, reads raise NotResident, they never wait."""

    __slots__ = ("_pages", "_pages_address", "_seen", "is_required", "written_from")

    def __init__(self) -> None:
        self.is_required = False
        self.written_from = 0
        """This process has written the log from here on, and so has accessed its pages."""
        self._pages = bytearray(_CHECKED_PAGES_MAX)
        self._pages_address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._seen: dict[str, bytearray] = {}  # by file: a byte for each chunk

    def __enter__(self) -> Residency:
        self.is_required = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_required = False

    def lacking(self, file: Mapped, begin: int, end: int) -> FileRange | None:
        """Return what is not resident of bytes [begin, end) of a mapped file, None if all is resident.

        That is the range from the first absent page to the last, or all of a long range that has not been
        read through. Pages beyond the first 64 MiB are not checked.
        """
        lacks = self.absent(file, begin, end)
        if end - begin < READ_AHEAD_FROM_BYTES or file.base + begin >= self.written_from:
            return lacks
        seen = self._seen_of(file)
        first, stop = begin // _SEEN_CHUNK_BYTES, -(-end // _SEEN_CHUNK_BYTES)
        if lacks is not None:  # what follows is read ahead now
            seen[stop : stop + _SEEN_CHUNKS_AHEAD] = bytes(len(seen[stop : stop + _SEEN_CHUNKS_AHEAD]))
        if seen.find(0, first, stop) >= 0:
            seen[first:stop] = b"\x01" * (stop - first)
            return FileRange(file.name, begin, end)
        return lacks

    def _seen_of(self, file: Mapped) -> bytearray:
        seen = self._seen.get(file.name)
        if seen is None:
            if len(self._seen) >= _SEEN_FILES_MAX:
                del self._seen[next(iter(self._seen))]
            seen = self._seen[file.name] = bytearray(-(-file.size_bytes // _SEEN_CHUNK_BYTES))
        return seen

    def absent(self, file: Mapped, begin: int, end: int) -> FileRange | None:
        """Return the range from the first page to the last that is not in the page cache, None if all are."""
        first = begin - begin % PAGE_BYTES
        pages = min(-(-(end - first) // PAGE_BYTES), _CHECKED_PAGES_MAX)
        if _mincore(file.address + first, pages * PAGE_BYTES, self._pages_address):
            return None  # the system cannot tell: the read may wait
        lacks = self._pages.find(0, 0, pages)
        if lacks < 0:
            return None
        stop = first + (self._pages.rfind(0, 0, pages) + 1) * PAGE_BYTES
        return FileRange(file.name, first + lacks * PAGE_BYTES, min(stop, file.size_bytes))

    def require(self, file: Mapped, begin: int, end: int) -> None:
        """Raise NotResident unless bytes [begin, end) are resident."""
        lacks = self.lacking(file, begin, end)
        if lacks is not None:
            raise NotResident([lacks])

    def pread(self, descriptor: int, size_bytes: int, place: int, path: str) -> bytes:
        """Return the result of `os.pread`. Raises OSError, and NotResident instead of waiting."""
        if not self.is_required or not _NO_WAIT:
            return os.pread(descriptor, size_bytes, place)
        into = bytearray(size_bytes)
        try:
            count = os.preadv(descriptor, [into], place, _NO_WAIT)
        except BlockingIOError:
            count = 0
        except OSError:  # the file system cannot tell, or the plain read raises the failure
            return os.pread(descriptor, size_bytes, place)
        if count < size_bytes:
            if os.fstat(descriptor).st_size < place + size_bytes:
                return bytes(into[:count])
            ahead_bytes = _UNITS_AHEAD_BYTES if size_bytes >= _LONG_UNITS_BYTES else 0
            raise NotResident([FileRange(path, place, place + max(size_bytes, ahead_bytes))])
        return bytes(into)


class WarmJob:
    """Reads ranges into the page cache, in any thread; it waits for the disk without the GIL."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self.ranges = ranges

    def run(self) -> None:
        """Read them all; one that is gone or unreadable is left to the read that needs it, which fails."""
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
    """Raises OSError."""
    if end - begin >= READ_AHEAD_FROM_BYTES:
        # A long read is usually followed by the next: the disk reads ahead while this one is served.
        os.posix_fadvise(descriptor, end, end - begin, os.POSIX_FADV_WILLNEED)
    place = begin
    while place < end:
        count = os.preadv(descriptor, [scratch[: end - place]], place)
        if count == 0:
            return
        place += count

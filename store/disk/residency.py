"""Residency: which bytes of the store's files are in the page cache, and how those that are not get there.

The thread that owns a store never waits for the disk to read (design law 4). Within `store.resident_only` a
read that would wait raises `Cold` instead, which names the ranges that it lacks; `WarmJob` brings them in, in
any thread, and then the read is done again. Nothing of a read is kept over the wait but names of files:
whatever retention or a truncation does meanwhile, the second try sees the store as it is then.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol

PAGE_BYTES = mmap.PAGESIZE
# So much before the log's end is taken to be there without asking: it has just been written.
RECENT_BYTES = 4 * 1024 * 1024
# Records with less than this between them are brought in by one read.
JOINED_GAP_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
_CHECKED_PAGES_MAX = 64 * 1024 * 1024 // PAGE_BYTES
READ_AHEAD_FROM_BYTES = 256 * 1024
"""A range as long as this has as much after it read ahead."""
_SEEN_CHUNK_BYTES = 64 * 1024
# Systems read up to 8 MiB ahead by themselves.
_SEEN_CHUNKS_AHEAD = 16 * 1024 * 1024 // _SEEN_CHUNK_BYTES
_SEEN_FILES_MAX = 64
# Whoever reads many units will want the next ones, too.
_LONG_UNITS_BYTES = 16 * 1024
_UNITS_AHEAD_BYTES = READ_AHEAD_FROM_BYTES - PAGE_BYTES
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)

# PyDLL: the call takes a microsecond, which giving the GIL away and getting it back would not.
_mincore = ctypes.PyDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class FileRange(NamedTuple):
    """Bytes [begin, end) of a file."""

    path: str
    begin: int
    end: int


class Cold(Exception):
    """A read would have waited for the disk: these ranges are not in the page cache."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class Mapped(Protocol):
    """The face of `MappedFile` that is needed here."""

    @property
    def address(self) -> int:
        """Where the map begins."""

    @property
    def base(self) -> int:
        """Its place in the log."""

    @property
    def size_bytes(self) -> int:
        """How long it is."""

    @property
    def name(self) -> str:
        """The file's path."""


class Residency:
    """Whether reads of one store may wait. A context manager: within it they may not.

    What the disk brought ahead of a read is in the page cache, but no processor has seen it. On a virtual
    machine the first look at each page may cost 10 µs (2.4 ms a mebibyte), so a thread takes it: a long range
    is lacking, too, until it has been read through once.
    """

    __slots__ = ("_pages", "_pages_address", "_seen", "is_required", "written_from")

    def __init__(self) -> None:
        self.is_required = False
        self.written_from = 0
        """What stands in the log from here on, this process has written, and so it has seen it."""
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
        """What of bytes [begin, end) of a mapped file is not in the page cache: from the first page that is
        not to the last; None where all is there. Of a longer range the first 64 MiB are looked at.

        A long range is named as a whole until it has been read through.
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
        """As `lacking`, whether or not anybody has looked at what is there."""
        first = begin - begin % PAGE_BYTES
        pages = min(-(-(end - first) // PAGE_BYTES), _CHECKED_PAGES_MAX)
        if _mincore(file.address + first, pages * PAGE_BYTES, self._pages_address):
            return None  # where the system does not tell, reads may wait
        lacks = self._pages.find(0, 0, pages)
        if lacks < 0:
            return None
        stop = first + (self._pages.rfind(0, 0, pages) + 1) * PAGE_BYTES
        return FileRange(file.name, first + lacks * PAGE_BYTES, min(stop, file.size_bytes))

    def require(self, file: Mapped, begin: int, end: int) -> None:
        """Raise `Cold` unless bytes [begin, end) are in the page cache."""
        lacks = self.lacking(file, begin, end)
        if lacks is not None:
            raise Cold([lacks])

    def pread(self, descriptor: int, size_bytes: int, place: int, path: str) -> bytes:
        """What `os.pread` gives, without waiting: raises `Cold` instead. Raises OSError."""
        if not self.is_required or not _NO_WAIT:
            return os.pread(descriptor, size_bytes, place)
        into = bytearray(size_bytes)
        try:
            count = os.preadv(descriptor, [into], place, _NO_WAIT)
        except BlockingIOError:
            count = 0
        except OSError:  # this file system cannot say, or it has failed, which the plain read then tells
            return os.pread(descriptor, size_bytes, place)
        if count < size_bytes:
            if os.fstat(descriptor).st_size < place + size_bytes:
                return bytes(into[:count])
            ahead_bytes = _UNITS_AHEAD_BYTES if size_bytes >= _LONG_UNITS_BYTES else 0
            raise Cold([FileRange(path, place, place + max(size_bytes, ahead_bytes))])
        return bytes(into)


class WarmJob:
    """Brings ranges into the page cache. For any thread: waits for the disk, and without the GIL."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self.ranges = ranges

    def run(self) -> None:
        """Read them all. What is gone or cannot be read is left to the read that wants it, which says so."""
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
        # Whoever reads so much will want what follows; the disk brings it while this is answered.
        os.posix_fadvise(descriptor, end, end - begin, os.POSIX_FADV_WILLNEED)
    place = begin
    while place < end:
        count = os.preadv(descriptor, [scratch[: end - place]], place)
        if count == 0:
            return
        place += count

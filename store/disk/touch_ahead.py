"""TouchAhead: reads the pages ahead of a writer into the page cache, in another thread.

The first access to a new page may take 10 µs on a virtual machine (2.4 ms per MiB), and one page fault may
trigger 8 MiB of readahead. If the pages were not cached in advance, the thread that owns the store would be
blocked meanwhile. The pages are only read and stay clean, so fdatasync has nothing more to write.

Linux may cache a file in folios of up to 2 MiB instead of single pages, and does so for sequential reads.
Large folios make reading ahead, write(2) and fdatasync cheaper. If a file is written through a mapping,
however, each write marks its whole folio as dirty. Therefore log files are touched by `touch_sequentially`,
and index files by `touch`.
"""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from store.common.background import Lane

AHEAD_BYTES = 32 * 1024 * 1024
_STEP_BYTES = 4 * 1024 * 1024  # one call reads at most a few MiB


Touch = Callable[[str, int, int], None]
"""Reads the bytes [begin, end) of the file at a path into the page cache."""


def touch(path: str, begin: int, end: int) -> None:
    """Read the bytes [begin, end) of a file into the page cache. Errors are ignored.

    The pages of a range that was never written are cached when the function returns. For other ranges, the
    disk may still be reading then.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for place in range(begin, end, _STEP_BYTES):
                size_bytes = min(_STEP_BYTES, end - place)
                os.posix_fadvise(descriptor, place, size_bytes, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def touch_sequentially(path: str, begin: int, end: int) -> None:
    """Read the bytes [begin, end) of a file into the page cache, in large folios. Errors are ignored."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file, Path(os.devnull).open("wb") as null:
        place = begin
        while place < end:
            # Sending to the null device reads the pages without a copy.
            sent_bytes = os.sendfile(null.fileno(), file.fileno(), place, min(_STEP_BYTES, end - place))
            if not sent_bytes:
                return
            place += sent_bytes


class TouchAhead:
    """Keeps up to AHEAD_BYTES after the write position of a growing file in the page cache.

    The thread that owns the store calls `look`; the reads run in the background.
    """

    __slots__ = ("_lane", "_path", "_touch", "_touched_to", "look_at")

    def __init__(self, lane: Lane, written: int, touch: Touch) -> None:
        """Create the object for a writer that is at position `written`. `touch` reads the pages.

        Nothing is read ahead before the writer has advanced by 4 MiB.
        """
        self._lane = lane
        self._touch = touch
        self._path = ""
        self._touched_to = 0
        self.look_at = written + _STEP_BYTES
        """The position of the writer from which on `look` must be called again."""

    def look(self, path: str, base: int, size_bytes: int, position: int) -> None:
        """Start to read ahead if the writer has advanced far enough.

        Args:
            path: The file that is being written.
            base: Position of the first byte of the file (for a log file, its CommitLog offset).
            size_bytes: Size of the file.
            position: Position of the writer, counted like `base`.
        """
        if path != self._path:
            self._path, self._touched_to = path, position
        elif position < self.look_at:
            return
        begin = max(self._touched_to, position)
        end = min(position + AHEAD_BYTES, base + size_bytes)
        if begin < end:
            self._lane.submit(partial(self._touch, path, begin - base, end - base))
        self._touched_to = end
        self.look_at = end if end == base + size_bytes else end - AHEAD_BYTES // 2

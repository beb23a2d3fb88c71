"""Pages that a writer will come to are brought into the page cache before it, on another thread.

A fresh page costs the more the colder the machine's memory is: on a virtual machine up to 10 µs, 2.4 ms a
mebibyte; and one fault in a map brings whatever the system reads ahead, which may be 8 MiB. The store's own
thread would stand still for that. What is only read stays clean, so fdatasync has no more to write.
"""

import contextlib
import os
from functools import partial

from store.jobs import Lane

AHEAD_BYTES = 32 * 1024 * 1024
_STEP_BYTES = 4 * 1024 * 1024  # the system takes no more than some mebibytes in one call


def touch(path: str, begin: int, end: int) -> None:
    """Bring bytes [begin, end) of a file into the page cache; one that cannot be read is left alone.

    Returns when they are there, if they were never written; else the disk may still be reading.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for place in range(begin, end, _STEP_BYTES):
                size_bytes = min(_STEP_BYTES, end - place)
                os.posix_fadvise(descriptor, place, size_bytes, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


class TouchAhead:
    """Keeps up to AHEAD_BYTES of one growing file touched. Belongs to the store's thread."""

    __slots__ = ("_lane", "_path", "_touched_to", "look_at")

    def __init__(self, lane: Lane, written: int) -> None:
        """Skip a file until it has grown by a step beyond `written`."""
        self._lane = lane
        self._path = ""
        self._touched_to = 0
        self.look_at = written + _STEP_BYTES
        """Nothing is to be done before the writer has come so far."""

    def look(self, path: str, base: int, size_bytes: int, position: int) -> None:
        """The writer is at `position`, in the file at `path` which has `size_bytes` from `base` on."""
        if path != self._path:
            self._path, self._touched_to = path, position
        elif position < self.look_at:
            return
        begin = max(self._touched_to, position)
        end = min(position + AHEAD_BYTES, base + size_bytes)
        if begin < end:
            self._lane.submit(partial(touch, path, begin - base, end - base))
        self._touched_to = end
        self.look_at = end if end == base + size_bytes else end - AHEAD_BYTES // 2

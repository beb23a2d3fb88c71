"""Memory between two guard pages: a kernel that accesses one byte outside of its input crashes the process.

    | no access | 64 KiB | no access |

The input is placed twice: at the end of the memory and at its beginning.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

ROOM_BYTES = 64 * 1024
_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0


class Fence:
    """64 KiB of memory between two guard pages. A placed input is valid until the next one is placed."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, ROOM_BYTES + 2 * _PAGE)
        self._all: Bytes = np.frombuffer(self._map, np.uint8)
        start = self._all.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for wall in (start, start + _PAGE + ROOM_BYTES):
            if libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(_PAGE), _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "cannot protect the guard pages (mprotect)")
        self._room = self._all[_PAGE : _PAGE + ROOM_BYTES]

    def placed(self, data: bytes) -> Iterator[Bytes]:
        """Yield the data (at most 64 KiB) placed at the end of the memory, then at its beginning."""
        data = data[:ROOM_BYTES]
        found = np.frombuffer(data, np.uint8)
        for part in (self._room[ROOM_BYTES - len(data) :], self._room[: len(data)]):
            part[:] = found
            yield part

"""Memory with a wall before and behind it: a kernel that reads one byte too far ends the process.

    | no access | 64 KiB | no access |

Input is laid down twice, against the far wall and against the near one.
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
    """One such piece of memory; what it lends is valid until it lends again."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, ROOM_BYTES + 2 * _PAGE)
        self._all: Bytes = np.frombuffer(self._map, np.uint8)
        start = self._all.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for wall in (start, start + _PAGE + ROOM_BYTES):
            if libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(_PAGE), _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "no wall can be built here")
        self._room = self._all[_PAGE : _PAGE + ROOM_BYTES]

    def placed(self, data: bytes) -> Iterator[Bytes]:
        """The data against the far wall, then against the near one; at most 64 KiB of it."""
        data = data[:ROOM_BYTES]
        found = np.frombuffer(data, np.uint8)
        for part in (self._room[ROOM_BYTES - len(data) :], self._room[: len(data)]):
            part[:] = found
            yield part

"""One file of the log: its whole space is there before it is used, it is mapped, and never gets shorter
(design law 5).
"""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from store.disk.files import check_size, write_all, zero_data
from store.message.buffers import Buffer

HEAD_BYTES = 8  # size and magic of an append's first record
# Below this a copy into the map is faster than a system call, above it the faults of fresh pages cost more
# than the call (4 KiB: 7.9 µs mapped, 3.1 µs written; 300 B: 0.4 and 1.2; 1 MiB: 203 and 151).
PWRITE_FROM_BYTES = 2048
_LIBC = ctypes.CDLL(None, use_errno=True)


def file_name(base: int) -> str:
    """RocketMQ's name of the file whose first byte is at `base`."""
    return f"{base:020d}"


def allocate_file(path: Path, size_bytes: int, scratch: Path) -> None:
    """Make a file of zeros whose space is taken; it shows at `path` when it is whole.

    It is made in `scratch`, a directory on the same file system, as nothing half-made may stand among the
    logs. Raises OSError (a full disk among others).
    """
    temporary = scratch / f"{path.parent.name}-{path.name}.new"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        os.fsync(descriptor)
    except OSError:
        temporary.unlink()
        raise
    finally:
        os.close(descriptor)
    temporary.rename(path)


class MappedFile:
    """A mapped file at offset `base` of its log.

    Slices of its view keep the map alive after `close` (law 10).
    """

    __slots__ = (
        "_descriptor",
        "address",
        "array",
        "base",
        "is_writable",
        "name",
        "path",
        "size_bytes",
        "view",
    )

    def __init__(self, path: Path, base: int, size_bytes: int, *, copy_on_write: bool = False) -> None:
        """Map the file. With `copy_on_write` nothing that is written ever reaches the file (dump)."""
        self.path = path
        self.name = str(path)
        self.base = base
        self.size_bytes = size_bytes
        self.is_writable = not copy_on_write
        self._descriptor = os.open(path, os.O_RDONLY if copy_on_write else os.O_RDWR)
        try:
            check_size(self._descriptor, path, size_bytes)
            access = mmap.ACCESS_COPY if copy_on_write else mmap.ACCESS_WRITE
            self.view = memoryview(mmap.mmap(self._descriptor, size_bytes, access=access))
        except BaseException:
            os.close(self._descriptor)
            raise
        self.array: NDArray[np.uint8] = np.frombuffer(self.view, dtype=np.uint8)
        self.address = self.array.ctypes.data

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.base + self.size_bytes

    @property
    def descriptor(self) -> int:
        """For fdatasync."""
        return self._descriptor

    def write_at(self, place: int, buffers: Sequence[Buffer]) -> None:
        """Write `buffers` one after the other at byte `place`; their first 8 bytes last (law 6).

        Raises OSError.
        """
        first = buffers[0]
        if len(buffers) == 1 and len(first) < PWRITE_FROM_BYTES:
            self.view[place + HEAD_BYTES : place + len(first)] = first[HEAD_BYTES:]
        else:
            after = place + len(first)
            for buffer in buffers[1:]:
                write_all(self._descriptor, buffer, after)
                after += len(buffer)
            write_all(self._descriptor, memoryview(first)[HEAD_BYTES:], place + HEAD_BYTES)
        head = first[:HEAD_BYTES]
        self.view[place : place + len(head)] = head

    def zero_from(self, place: int) -> None:
        """Write zeros over all data from byte `place` on, skipping what was never written. Raises OSError."""
        zero_data(self._descriptor, place, self.size_bytes)

    def data_end(self) -> int:
        """Behind this byte the file holds nothing but what was never written."""
        place, end = 0, 0
        while place < self.size_bytes:
            try:
                place = os.lseek(self._descriptor, place, os.SEEK_DATA)
            except OSError:  # ENXIO: no more data
                break
            place = end = os.lseek(self._descriptor, place, os.SEEK_HOLE)
        return end

    def retire(self) -> Callable[[], bool]:
        """Leave map and descriptor to the function that is returned, for another thread to call.

        It lets go of both and returns True, or False as long as somebody still has a slice of the file.
        """
        mapped, descriptor = cast("mmap.mmap", self.view.obj), self._descriptor
        self._descriptor = -1

        def release() -> bool:
            try:
                mapped.close()  # releases the GIL, which the end of the last slice would not
            except BufferError:
                return False
            if descriptor >= 0:
                os.close(descriptor)
            return True

        return release

    def lock_in_memory(self) -> None:
        """Bring all pages into memory and keep them there; none gets dirty by this. Raises OSError."""
        self._call(_LIBC.mlock)

    def unlock_from_memory(self) -> None:
        """Let the pages go as memory is needed."""
        with contextlib.suppress(OSError):
            self._call(_LIBC.munlock)

    def _call(self, call: Callable[[ctypes.c_void_p, ctypes.c_size_t], int]) -> None:
        array = self.array  # keeps the map while the call runs, which is without the GIL
        if len(array) and call(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(array))):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))

    def close(self) -> None:
        """Let go of the file; slices given out keep the map until they are gone."""
        self.array = np.empty(0, dtype=np.uint8)
        self.view = memoryview(b"")
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

"""MappedFile: one file of the CommitLog, fully allocated before use, memory-mapped, and never shortened.

See docs/design.md#invariant-5.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from store.disk.files import check_size, reserve, write_all, zero_data
from store.message.buffers import Buffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD_BYTES = 8  # size and magic of the first record of an append
# Below this size a copy into the map is faster than pwrite; above it the page faults cost more than the
# system call (4 KiB: 7.9 µs mapped, 3.1 µs pwrite; 300 B: 0.4 and 1.2; 1 MiB: 203 and 151).
PWRITE_FROM_BYTES = 2048
_LIBC = ctypes.CDLL(None, use_errno=True)


def file_name(base: int) -> str:
    """Return the name of the log file that begins at CommitLog offset `base`: 20 decimal digits."""
    return f"{base:020d}"


def allocate_file(path: Path, size_bytes: int, scratch: Path) -> None:
    """Create a file of `size_bytes` zeros with its disk space allocated.

    The file is created in the directory `scratch`, which must be on the same file system, and renamed to
    `path` when complete: a kill leaves no partial file among the log files.

    Raises:
        OSError: The file cannot be created, for example because the disk is full.
    """
    temporary = scratch / f"{path.parent.name}-{path.name}.new"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        reserve(descriptor, size_bytes, path)
        os.fsync(descriptor)  # before the rename: a power loss must not leave a log file of another size
    except OSError:
        temporary.unlink()
        raise
    finally:
        os.close(descriptor)
    temporary.rename(path)


class MappedFile:
    """A memory-mapped log file; `base` is the CommitLog offset of its first byte.

    Slices of `view` keep the map alive after `close` (docs/design.md#invariant-10).
    """

    __slots__ = (
        "_descriptor",
        "address",
        "array",
        "base",
        "end",
        "is_writable",
        "name",
        "path",
        "size_bytes",
        "view",
    )

    def __init__(self, path: Path, base: int, size_bytes: int, *, copy_on_write: bool = False) -> None:
        """Map the log file at `path`.

        With `copy_on_write`, writes change this process's memory only, never the file: for offline tools and
        read-only directories.

        Raises:
            OSError: The file cannot be opened or mapped.
            StoreError: The size of the file is not `size_bytes`.
        """
        self.path = path
        self.name = str(path)
        import numpy as np  # the command line imports this module, and needs no numpy

        self.base = base
        self.size_bytes = size_bytes
        self.end = base + size_bytes
        """The CommitLog offset after the last byte of the file."""
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
    def descriptor(self) -> int:
        """The file descriptor, for fdatasync."""
        return self._descriptor

    def write_at(self, place: int, buffers: Sequence[Buffer]) -> None:
        """Write `buffers` contiguously at byte position `place` of the file, the first 8 bytes last.

        A record whose first 8 bytes are missing is invalid, so readers never see half an append
        (docs/design.md#invariant-6). Raises OSError.
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
        """Overwrite all data from byte position `place` to the end of the file with zeros.

        Ranges that are sparse in the file system are skipped. Raises OSError.
        """
        zero_data(self._descriptor, place, self.size_bytes)

    def data_end(self) -> int:
        """Return the byte position after the last data in the file, as found by SEEK_DATA."""
        place, end = 0, 0
        while place < self.size_bytes:
            try:
                place = os.lseek(self._descriptor, place, os.SEEK_DATA)
            except OSError:  # ENXIO: no more data
                break
            place = end = os.lseek(self._descriptor, place, os.SEEK_HOLE)
        return end

    def retire(self) -> Callable[[], bool]:
        """Detach the file, and return a function that unmaps and closes it in another thread.

        The function returns True when the file is closed. It returns False, and must be called again, while
        slices of the file are still in use.
        """
        mapped, descriptor = cast("mmap.mmap", self.view.obj), self._descriptor
        self._descriptor = -1

        def release() -> bool:
            try:
                mapped.close()  # releases the GIL while unmapping; dropping the last slice would not
            except BufferError:
                return False
            if descriptor >= 0:
                os.close(descriptor)
            return True

        return release

    def lock_in_memory(self) -> None:
        """Read all pages into memory and lock them there, without dirtying them. Raises OSError."""
        self._call(_LIBC.mlock)

    def unlock_from_memory(self) -> None:
        """Unlock the pages of the file, so that the kernel may evict them again."""
        with contextlib.suppress(OSError):
            self._call(_LIBC.munlock)

    def _call(self, call: Callable[[ctypes.c_void_p, ctypes.c_size_t], int]) -> None:
        array = self.array  # keeps the file mapped during the call, which releases the GIL
        if len(array) and call(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(array))):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))

    def close(self) -> None:
        """Close the file. Its memory map stays until the last slice of `view` is released."""
        self.array = self.array[:0].copy()
        self.view = memoryview(b"")
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

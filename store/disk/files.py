"""File helpers: complete writes, zeroing, syncing, atomic replacement, and a bounded set of descriptors."""

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from store.common.bounded_dict import BoundedDict
from store.store_errors import StoreError

__all__ = [
    "SYNC_ONE_BY_ONE_MAX",
    "Descriptors",
    "check_size",
    "data_ranges",
    "explain",
    "explained",
    "replace_file",
    "reserve",
    "settled_time_ns",
    "sync_directory",
    "sync_file_system",
    "sync_files",
    "write_all",
    "zero_data",
]

_PAGE_BYTES = 4096
_ZEROS = bytes(1 << 20)
_TIME_STEPS_NS = 20_000_000  # above the resolution of file times, on Linux a tick of 1 to 10 ms
_LIBC = ctypes.CDLL(None, use_errno=True)
SYNC_ONE_BY_ONE_MAX = 64
"""Largest number of files that `sync_files` syncs with one fdatasync per file.

For more files, one syncfs of the whole file system needs fewer round trips to the disk.
"""


_REMEDIES = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "raise the quota, or delete files",
    errno.EACCES: "give the files to the user who runs this, or run it as their owner",
    errno.EPERM: "give the files to the user who runs this, or run it as their owner",
    errno.EROFS: "mount the file system writable",
    errno.EIO: "the disk has failed: check the kernel log, and replace the disk",
    errno.EEXIST: "a directory is expected here: move away the file of that name",
    errno.ENOTDIR: "a directory is expected here: move away the file of that name",
    errno.EISDIR: "a file is expected here: move away the directory of that name",
    errno.ELOOP: "repair the symbolic link",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or lower max_open_files",
}


def explain(error: OSError) -> str:
    """Return the text of an operating-system error, with a remedy in parentheses if one is known."""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{error.strerror or error}" + (f" ({remedy})" if remedy else "")


@contextlib.contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Convert an OSError raised in the `with` block to a StoreError with the file's path and a remedy.

    `what` is the beginning of the error message, for example "cannot be opened". `path` is used if the
    OSError contains no file name.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {explain(error)}", error.filename or path) from error


def reserve(descriptor: int, size_bytes: int, path: Path) -> None:
    """Allocate the first bytes of a file on its disk. Raises OSError, with the size if the disk is full."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        disk = os.fstatvfs(descriptor)
        text = (
            f"{error.strerror or 'the disk is full'}: {path.name} needs {size_bytes:,} bytes, "
            f"and {disk.f_bavail * disk.f_frsize:,} are free"
        )
        raise OSError(error.errno, text, str(path)) from error


def write_all(descriptor: int, data: bytes | bytearray | memoryview, place: int) -> None:
    """Write all of `data` at byte position `place` of the file, also if a single write is incomplete.

    Raises OSError.
    """
    done = os.pwrite(descriptor, data, place)
    if done < len(data):
        rest = memoryview(data)[done:]
        while len(rest):
            place += done
            done = os.pwrite(descriptor, rest, place)
            rest = rest[done:]


def zero_data(descriptor: int, place: int, end: int) -> None:
    """Overwrite the bytes [place, end) of a file with zeros, without allocating sparse ranges.

    The pages are overwritten from the last to the first. If the process is killed, the data before the last
    overwritten page is therefore intact. Raises OSError.
    """
    # Collect all ranges first: reading a sparse range makes the file system report it as data.
    for first, stop in reversed(list(data_ranges(descriptor, place, end))):
        for part, at in _from_the_end(descriptor, first, stop, len(_ZEROS)):
            if part == _ZEROS[: len(part)]:
                continue
            for page, page_at in _from_the_end(descriptor, at, at + len(part), _PAGE_BYTES):
                if page != _ZEROS[: len(page)]:
                    write_all(descriptor, _ZEROS[: len(page)], page_at)


def _from_the_end(descriptor: int, first: int, stop: int, step: int) -> Iterator[tuple[bytes, int]]:
    """Read the bytes [first, stop) of a file backwards, in parts aligned to `step` bytes.

    Yields the content and the byte position of each part.
    """
    while stop > first:
        at = max(first, (stop - 1) // step * step)
        yield os.pread(descriptor, stop - at, at), at
        stop = at


def data_ranges(descriptor: int, place: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges within bytes [place, end) of a file that contain data, according to SEEK_DATA.

    Sparse ranges, which were never written, are skipped.
    """
    while place < end:
        try:
            place = max(place, os.lseek(descriptor, place, os.SEEK_DATA))
        except OSError:  # ENXIO: no data from here on
            return
        hole = min(end, os.lseek(descriptor, place, os.SEEK_HOLE))
        yield place, hole
        place = hole


def sync_files(paths: Sequence[str], directory: Path) -> None:
    """Flush the data of the files at `paths` to disk. Raises OSError.

    All files must be below `directory`. Files that no longer exist are skipped.
    """
    if len(paths) > SYNC_ONE_BY_ONE_MAX:
        sync_file_system(directory)
        return
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:  # the topic was deleted meanwhile
            continue
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def sync_file_system(directory: Path) -> None:
    """Flush the whole file system that contains `directory`, with one system call. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(descriptor):  # ctypes releases the GIL during the call
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(directory))
    finally:
        os.close(descriptor)


def check_size(descriptor: int, path: Path, size_bytes: int) -> None:
    """Raise StoreError unless the open file has `size_bytes` bytes."""
    found_bytes = os.fstat(descriptor).st_size
    if found_bytes != size_bytes:
        raise StoreError(f"the file has {found_bytes:,} bytes, expected {size_bytes:,}", path)


def sync_directory(path: Path) -> None:
    """Flush a directory to disk, so that created, renamed and removed files in it are durable.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def settled_time_ns(path: str) -> int:
    """Return the modification time of a file in ns, or 0 if it could stay the same after another change.

    Modification times have a resolution of some milliseconds: a second change shortly after the first could
    leave the same time. So 0 is returned for a recent change, and also if the file does not exist.
    """
    try:
        changed_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - runs for 20,000 files; Path doubles the cost
    except FileNotFoundError:
        return 0
    # Compare with the system clock, which file systems use, not with the injected clock of a test.
    return changed_ns if time.time_ns() - changed_ns > _TIME_STEPS_NS else 0


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file durably and atomically. Raises OSError.

    After a crash the file has either the old or the new content.
    """
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


class Descriptors:
    """Open file descriptors by path. If there are too many, the least recently used one is closed."""

    def __init__(self, limit: int, *, read_only: bool = False) -> None:
        self._limit = limit
        self.is_read_only = read_only
        self._open = BoundedDict[str, int](limit, lambda _, oldest: os.close(oldest))

    @property
    def is_full(self) -> bool:
        """True if the limit is reached, so that opening another file would close one."""
        return not self.is_read_only and len(self._open) >= self._limit

    def spare(self) -> int:
        """Return how many further files may be opened."""
        return self._limit - len(self._open)

    def get(self, path: str) -> int:
        """Return the descriptor of an existing file, opening it if necessary. Raises OSError."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        return self.put(path, os.open(path, os.O_RDONLY if self.is_read_only else os.O_RDWR))

    def put(self, path: str, descriptor: int) -> int:
        """Add the descriptor of a file that the caller has just opened, and return the descriptor."""
        # Without this, readahead would fill the page cache with the unwritten ends of consume-queue files.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._open[path] = descriptor
        return descriptor

    def drop(self, path: str) -> None:
        """Close the file if it is open."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def drop_below(self, directory: str) -> None:
        """Close all files below `directory`."""
        for path in [path for path in self._open if path.startswith(f"{directory}/")]:
            self.drop(path)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            _, descriptor = self._open.popitem()
            with contextlib.suppress(OSError):
                os.close(descriptor)

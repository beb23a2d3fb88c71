"""Small things that every kind of file needs: whole writes, zeroing, durable names, and a bounded set of
descriptors.
"""

import contextlib
import ctypes
import errno
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from store.store_errors import StoreError

__all__ = [
    "SYNC_ONE_BY_ONE_MAX",
    "Descriptors",
    "check_size",
    "data_ranges",
    "explain",
    "explained",
    "replace_file",
    "settled_time_ns",
    "sync_directory",
    "sync_file_system",
    "sync_files",
    "write_all",
    "zero_data",
]

_PAGE_BYTES = 4096
_ZEROS = bytes(1 << 20)
_TIME_STEPS_NS = 20_000_000  # Linux takes a tick of 1 to 10 ms
_LIBC = ctypes.CDLL(None, use_errno=True)
SYNC_ONE_BY_ONE_MAX = 64
"""More files than that are synced with all of their file system: each costs a disk's round trip, it a few."""


_REMEDIES = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "raise the quota, or make room",
    errno.EACCES: "give the files to the user who runs this, or run it as their owner",
    errno.EPERM: "give the files to the user who runs this, or run it as their owner",
    errno.EROFS: "mount the file system writable",
    errno.EIO: "the disk has failed: look at the system's log, and replace it",
    errno.EEXIST: "there is to be a directory: move away what has its name",
    errno.ENOTDIR: "there is to be a directory: move away what has its name",
    errno.EISDIR: "there is to be a file: move the directory away",
    errno.ELOOP: "mend the symbolic link",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or lower max_open_files",
}


def explain(error: OSError) -> str:
    """What has gone wrong with a file, and what to do about it."""
    cure = _REMEDIES.get(error.errno or 0)
    return f"{error.strerror or error}" + (f" ({cure})" if cure else "")


@contextlib.contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the file (or `path`), `what` and a cure."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {explain(error)}", error.filename or path) from error


def write_all(descriptor: int, data: bytes | bytearray | memoryview, place: int) -> None:
    """Write all of `data` at byte `place`. Raises OSError."""
    done = os.pwrite(descriptor, data, place)
    if done < len(data):
        rest = memoryview(data)[done:]
        while len(rest):
            place += done
            done = os.pwrite(descriptor, rest, place)
            rest = rest[done:]


def zero_data(descriptor: int, place: int, end: int) -> None:
    """Write zeros over what is not zero in [place, end), but not into holes. Raises OSError.

    Page by page from the end: a kill stops a write between pages, and what comes before is still whole then.
    """
    # All ranges first: what is read of a hole counts as data from then on.
    for first, stop in reversed(list(data_ranges(descriptor, place, end))):
        for part, at in _from_the_end(descriptor, first, stop, len(_ZEROS)):
            if part == _ZEROS[: len(part)]:
                continue
            for page, page_at in _from_the_end(descriptor, at, at + len(part), _PAGE_BYTES):
                if page != _ZEROS[: len(page)]:
                    write_all(descriptor, _ZEROS[: len(page)], page_at)


def _from_the_end(descriptor: int, first: int, stop: int, step: int) -> Iterator[tuple[bytes, int]]:
    """What stands in [first, stop) and where, in parts between multiples of `step`, the last one first."""
    while stop > first:
        at = max(first, (stop - 1) // step * step)
        yield os.pread(descriptor, stop - at, at), at
        stop = at


def data_ranges(descriptor: int, place: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [place, end) that have been written; between them are holes in the file."""
    while place < end:
        try:
            place = max(place, os.lseek(descriptor, place, os.SEEK_DATA))
        except OSError:  # ENXIO: no data from here on
            return
        hole = min(end, os.lseek(descriptor, place, os.SEEK_HOLE))
        yield place, hole
        place = hole


def sync_files(paths: Sequence[str], directory: Path) -> None:
    """Make the data of these files durable, all below `directory`; some may be gone. Raises OSError."""
    if len(paths) > SYNC_ONE_BY_ONE_MAX:
        sync_file_system(directory)
        return
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:  # its topic has been deleted since
            continue
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def sync_file_system(directory: Path) -> None:
    """Make all of the file system of `directory` durable: one call for thousands of files. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(descriptor):  # ctypes lets other threads run meanwhile
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(directory))
    finally:
        os.close(descriptor)


def check_size(descriptor: int, path: Path, size_bytes: int) -> None:
    """Raise StoreError when the file has another size."""
    found_bytes = os.fstat(descriptor).st_size
    if found_bytes != size_bytes:
        raise StoreError(f"a file of {found_bytes:,} bytes in place of {size_bytes:,}", path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def settled_time_ns(path: str) -> int:
    """When a file was last changed, if any later change will show in that time; else 0.

    A file's clock goes in steps: a change right after this one could leave the same time.
    """
    try:
        changed_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - of 20,000 files; a Path costs as much again
    except FileNotFoundError:
        return 0
    # Compared with the clock that file systems go by, not with one that a test may hold at rest.
    return changed_ns if time.time_ns() - changed_ns > _TIME_STEPS_NS else 0


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path`, durably and at once: a crash leaves the old or the new.

    Raises OSError.
    """
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


class Descriptors:
    """Open files, the longest unused closed first when there are too many."""

    def __init__(self, limit: int, *, read_only: bool = False) -> None:
        self._limit = limit
        self._is_read_only = read_only
        self._open: OrderedDict[str, int] = OrderedDict()

    @property
    def is_full(self) -> bool:
        """Whether a file that is opened to be written to costs another its descriptor."""
        return not self._is_read_only and len(self._open) >= self._limit

    def get(self, path: str) -> int:
        """The descriptor of an existing file. Raises OSError."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        return self.put(path, os.open(path, os.O_RDONLY if self._is_read_only else os.O_RDWR))

    def put(self, path: str, descriptor: int) -> int:
        """Take over a descriptor that has just been opened."""
        # Reading ahead would fill the page cache with the holes behind each queue's end.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._open[path] = descriptor
        while len(self._open) > self._limit:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor

    def drop(self, path: str) -> None:
        """Close this file if it is open."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def drop_below(self, directory: str) -> None:
        """Close all files that are somewhere in this directory."""
        for path in [path for path in self._open if path.startswith(f"{directory}/")]:
            self.drop(path)

    def close(self) -> None:
        """Close all."""
        while self._open:
            _, descriptor = self._open.popitem()
            with contextlib.suppress(OSError):
                os.close(descriptor)

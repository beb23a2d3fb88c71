"""LogPaths: the directories of the CommitLog's files, on one or several disks.

    storePathCommitLog=/disk1/commitlog,/disk2/commitlog      new files are created here in turn
    readOnlyCommitLogStorePaths=/disk0/commitlog              existing files are read, none are created

As in RocketMQ's MultiPathMappedFileQueue, the n-th file of the log is created in directory n modulo the
number of usable directories, in the order of their names. A directory is usable if it is not read-only and
the usage of its disk is not above the setting `disk_force_clean_percent`. If all disks are fuller, all
writable directories are used. If the file cannot be allocated in one directory, the next one is tried.
"""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from store.commitlog.mapped_file import MappedFile, allocate_file, file_name
from store.common.file_lock import try_lock
from store.common.logs import get_logger
from store.disk.disk_use import disk_use
from store.store_errors import StoreError

_log = get_logger(__name__)

COMMIT_LOG = "commitlog"
_SCRATCH = ".raymq"
_LOCK_WAIT_S = 1.0


def _is_locked(descriptor: int) -> bool:
    """Lock the directory that is open as `descriptor`.

    Returns False if another process still holds the lock after 1 s. The directory itself is locked, because a
    lock file among the log files would confuse RocketMQ.
    """
    try:
        # This process already holds the store's lock. A process that has just died may release the lock of
        # this directory slightly later, so retry for a second.
        return try_lock(descriptor, _LOCK_WAIT_S)
    except OSError:  # the file system does not support flock
        return True


class LogPaths:
    """The directories of one CommitLog."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[Path] = (Path(COMMIT_LOG),),
        read_only: Sequence[Path] = (),
        *,
        full_percent: Callable[[], int] = lambda: 100,
    ) -> None:
        """Create the list of directories.

        Args:
            root: The store's root; relative paths resolve against it.
            paths: Directories for new files.
            read_only: Directories whose files are only read.
            full_percent: Returns the disk usage above which a directory gets no new files.
        """
        self._root = root
        self.read_only = sorted({root / path for path in read_only})
        self.writable = sorted({root / path for path in paths} - set(self.read_only))
        self._full_percent = full_percent
        self._locks: list[int] = []

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))

    @property
    def all(self) -> list[Path]:
        """All directories, writable ones first."""
        return [*self.writable, *self.read_only]

    def prepare(self) -> None:
        """Create the writable directories, and remove temporary files of an earlier process.

        Raises:
            OSError: A directory cannot be created.
            StoreError: A read-only directory does not exist.
        """
        for directory in self.writable:
            directory.mkdir(parents=True, exist_ok=True)
        for directory in self.read_only:
            if not directory.is_dir():
                raise StoreError(
                    "read-only CommitLog directory does not exist: mount its disk, or remove it from "
                    "readOnlyCommitLogStorePaths if its files are no longer needed",
                    directory,
                )
        for scratch in {self._scratch(directory) for directory in self.writable}:
            for left in scratch.glob(f"*-{'[0-9]' * 20}.new"):  # from a process killed during an allocation
                left.unlink()

    def lock(self) -> None:
        """Lock all directories of the log until `unlock` is called.

        Raises StoreError if another store has locked one of them.
        """
        for directory in self.all:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            self._locks.append(descriptor)
            if not _is_locked(descriptor):
                self.unlock()
                raise StoreError(
                    "CommitLog directory is in use by another running broker: configure separate directories "
                    "for each broker",
                    directory,
                )

    def unlock(self) -> None:
        """Release the locks of all directories."""
        while self._locks:
            os.close(self._locks.pop())

    @property
    def is_empty(self) -> bool:
        """True if none of the directories contains a file."""
        directories = (directory for directory in self.all if directory.is_dir())
        return not any(path.is_file() for directory in directories for path in directory.iterdir())

    # ---- existing files ------------------------------------------------------------------------------------

    def scan(self, file_bytes: int) -> dict[int, Path]:
        """Return a map from each log file to its directory; a file is given by its first CommitLog offset.

        The offsets are in ascending order. An empty last file is ignored.

        Raises:
            StoreError: A file has a wrong name or size, occurs twice, or is missing between others.
        """
        entries = sorted(
            (
                entry
                for directory in self.all
                if directory.is_dir()
                for entry in os.scandir(directory)
                if not entry.is_dir()
            ),
            key=lambda entry: entry.name,
        )
        found: dict[int, Path] = {}
        before: int | None = None
        for number, entry in enumerate(entries):
            path = Path(entry.path)
            size_bytes = entry.stat().st_size
            if len(entry.name) != 20 or not entry.name.isdigit():
                raise StoreError("not a CommitLog file: move it out of the CommitLog directory", path)
            if size_bytes == 0 and number == len(entries) - 1:
                break
            base = int(entry.name)
            _check(path, base, size_bytes, file_bytes, before, found)
            found[base] = path.parent
            before = base
        return found

    def remove_empty_file(self, base: int) -> None:
        """Remove the log file that begins at CommitLog offset `base` if it is empty.

        RocketMQ may leave an empty file at the end of the log if it is killed.
        """
        for directory in self.writable:
            path = directory / file_name(base)
            if path.exists() and path.stat().st_size == 0:
                path.unlink()

    # ---- new files -----------------------------------------------------------------------------------------

    def make(self, base: int, file_bytes: int) -> MappedFile:
        """Create and map the log file that begins at CommitLog offset `base`.

        The directories are tried in order of preference until one succeeds.

        Raises:
            OSError: The file cannot be created in any directory; the error is that of the first one.
        """
        first: OSError | None = None
        for directory in self._places_for(base, file_bytes):
            path = directory / file_name(base)
            try:
                allocate_file(path, file_bytes, self._scratch(directory))
                return MappedFile(path, base, file_bytes)
            except OSError as error:
                _log.warning("file_allocation_failed", path=str(path), error=str(error))
                first = first or error
        try:
            raise first or OSError(errno.EROFS, "all CommitLog directories are read-only", str(self))
        finally:
            del first  # else the error and its traceback refer to each other and keep the mapped files alive

    def _places_for(self, base: int, file_bytes: int) -> list[Path]:
        """Return the directories in which to try to create the log file at `base`, in order of preference."""
        usable = [directory for directory in self.writable if not self._is_full(directory)] or self.writable
        turn = base // file_bytes % max(len(usable), 1)
        others = [directory for directory in self.writable if directory not in usable]
        return [*usable[turn:], *usable[:turn], *others]

    def _is_full(self, directory: Path) -> bool:
        try:
            return len(self.writable) > 1 and disk_use(directory).percent > self._full_percent()
        except OSError:
            return True

    def _scratch(self, directory: Path) -> Path:
        """Return the directory for temporary files of the log directory `directory`.

        It must be on the same file system, so that a rename works: the store's root if that is the case,
        otherwise a subdirectory of `directory`.
        """
        if self._root.stat().st_dev == directory.stat().st_dev:
            return self._root
        scratch = directory / _SCRATCH  # RocketMQ and `scan` ignore subdirectories
        scratch.mkdir(exist_ok=True)
        return scratch


def _check(
    path: Path, base: int, size_bytes: int, file_bytes: int, before: int | None, found: dict[int, Path]
) -> None:
    """Raise StoreError unless a log file is valid: it has the right size and follows the file at `before`.

    `base` is the CommitLog offset at which the file begins according to its name. `found` has the files
    checked so far.
    """
    if base in found:
        raise StoreError(f"the same file is also in {found[base]}: move one of them away", path)
    if size_bytes == 0:
        raise StoreError(f"the file is empty, but later files exist {_lost_file(file_bytes)}", path)
    if size_bytes != file_bytes:
        raise StoreError(
            f"the file has {size_bytes:,} bytes, but commit_log_file_bytes is {file_bytes:,} "
            "(set it to the file size of this store)",
            path,
        )
    if before is not None and base != before + file_bytes:
        missing = file_name(base - file_bytes)
        raise StoreError(f"the preceding file {missing} is missing {_lost_file(file_bytes)}", path)


def _lost_file(file_bytes: int) -> str:
    return (
        f"(restore it, or mount its disk; if it is lost, create it with `truncate -s {file_bytes}`: "
        "its messages are then skipped, and all others are served)"
    )

"""LogPaths: the directories that the CommitLog's files lie in: one, or several on several disks.

    storePathCommitLog=/disk1/commitlog,/disk2/commitlog      file n is made in the n-th of the usable ones,
    readOnlyCommitLogStorePaths=/disk0/commitlog              here files are read, and no new ones are made

RocketMQ's MultiPathMappedFileQueue: usable are those that are not read-only and not above the force level
(`disk_force_clean_percent`), in the order of their names; if all are above it, those that can be written. A
disk that then fails to take the file makes room for the next one's try.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from store.commitlog.mapped_file import MappedFile, allocate_file, file_name
from store.disk.disk_use import disk_use
from store.logs import get_logger
from store.store_errors import StoreError

_log = get_logger(__name__)

COMMIT_LOG = "commitlog"
_SCRATCH = ".raymq"
_LOCK_WAIT_S = 1.0
_LOCK_RETRY_S = 0.02


def _is_locked(descriptor: int) -> bool:
    """Lock a directory itself, as no file of ours may stand among the logs."""
    # The store's own lock is held already: a process that has just died may let go of this one a bit later.
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOCK_RETRY_S)
        except OSError:  # a file system without such locks
            return True
        else:
            return True


class LogPaths:
    """The directories of one log."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[Path] = (Path(COMMIT_LOG),),
        read_only: Sequence[Path] = (),
        *,
        full_percent: Callable[[], int] = lambda: 100,
    ) -> None:
        """Relative paths are meant below `root`, the store's."""
        self._root = root
        self.read_only = sorted({root / path for path in read_only})
        self.writable = sorted({root / path for path in paths} - set(self.read_only))
        self._full_percent = full_percent
        self._locks: list[int] = []

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))

    @property
    def all(self) -> list[Path]:
        """Every directory that may hold a file."""
        return [*self.writable, *self.read_only]

    def prepare(self) -> None:
        """Make the directories that are to be written. Raises OSError; StoreError for a missing other one."""
        for directory in self.writable:
            directory.mkdir(parents=True, exist_ok=True)
        for directory in self.read_only:
            if not directory.is_dir():
                raise StoreError(
                    "a read-only CommitLog directory that does not exist: mount its disk, or take it off "
                    "readOnlyCommitLogStorePaths if its files are no longer wanted",
                    directory,
                )
        for scratch in {self._scratch(directory) for directory in self.writable}:
            for left in scratch.glob(f"*-{'[0-9]' * 20}.new"):  # a kill came while it was being made
                left.unlink()

    def lock(self) -> None:
        """Keep other stores out of these directories until `unlock`. Raises StoreError."""
        for directory in self.all:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            self._locks.append(descriptor)
            if not _is_locked(descriptor):
                self.unlock()
                raise StoreError(
                    "is the CommitLog directory of another broker that is running: "
                    "give each broker directories of its own",
                    directory,
                )

    def unlock(self) -> None:
        """Let others in."""
        while self._locks:
            os.close(self._locks.pop())

    @property
    def is_empty(self) -> bool:
        """Whether there is no file in any of them."""
        directories = (directory for directory in self.all if directory.is_dir())
        return not any(path.is_file() for directory in directories for path in directory.iterdir())

    # ---- what is there -------------------------------------------------------------------------------------

    def scan(self, file_bytes: int) -> dict[int, Path]:
        """The directory of each file by the file's first offset, in order, checked for names, sizes and gaps.

        A last file of no bytes is left out. Raises StoreError, naming the file, for anything that does not
        belong there.
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
                raise StoreError("no log file, and nothing else may be in this directory: move it away", path)
            if size_bytes == 0 and number == len(entries) - 1:
                break
            base = int(entry.name)
            _check(path, base, size_bytes, file_bytes, before, found)
            found[base] = path.parent
            before = base
        return found

    def remove_empty_file(self, base: int) -> None:
        """Remove the file at `base` if it has no bytes: what a kill of RocketMQ may leave behind the last."""
        for directory in self.writable:
            path = directory / file_name(base)
            if path.exists() and path.stat().st_size == 0:
                path.unlink()

    # ---- new files -----------------------------------------------------------------------------------------

    def make(self, base: int, file_bytes: int) -> MappedFile:
        """Make the file at `base` on the first disk that has room for it. Raises OSError of the first try."""
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
            del first  # an error in a local variable of its own traceback keeps all frames and their files

    def _places_for(self, base: int, file_bytes: int) -> list[Path]:
        """Where the file at `base` may be made, the best first."""
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
        """Where a file is made before it gets its name: the store's root if it is on the same disk."""
        if self._root.stat().st_dev == directory.stat().st_dev:
            return self._root
        scratch = directory / _SCRATCH  # RocketMQ passes over directories among its logs, and so do we
        scratch.mkdir(exist_ok=True)
        return scratch


def _check(
    path: Path, base: int, size_bytes: int, file_bytes: int, before: int | None, found: dict[int, Path]
) -> None:
    """Raise StoreError if a file cannot follow the one at `before`."""
    if base in found:
        raise StoreError(f"this file is in {found[base]} too: move one of them away", path)
    if size_bytes == 0:
        raise StoreError(f"this file has no bytes, and others follow it {_lost_file(file_bytes)}", path)
    if size_bytes != file_bytes:
        raise StoreError(
            f"a file of {size_bytes:,} bytes, where commit_log_file_bytes is {file_bytes:,} "
            "(set it to the size that the store was made with)",
            path,
        )
    if before is not None and base != before + file_bytes:
        missing = file_name(base - file_bytes)
        raise StoreError(f"the file before it, {missing}, is missing {_lost_file(file_bytes)}", path)


def _lost_file(file_bytes: int) -> str:
    return (
        f"(put it back, or mount its disk; if it is lost, make it with `truncate -s {file_bytes}`: "
        "its messages are then passed over, and all others are served)"
    )

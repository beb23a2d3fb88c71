"""Resync: set the diverged log of a stopped slave aside, so that its next start copies the master's log.

    1. create <store>.before-resync-N, with copies of raymq.json and of the topics, so that it can be read
    2. move consume queues, index, checkpoints and the progress of delayed and timer messages into it
    3. move the CommitLog into it
    4. move diverged.json into it: the set-aside store is complete

Nothing is deleted. After a kill at any point the command can be run again: it resumes in the directory that
has no diverged.json yet. The CommitLog comes after the files derived from it, because a broker that finds no
log removes them. A broker that is started in between derives them again and finds the same difference; the
next resync then uses a directory of its own.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.commitlog.log_paths import COMMIT_LOG, LogPaths
from store.disk.files import sync_directory
from store.dispatch.saved_sink import SINKS
from store.kernels import walk
from store.lite.names import LITE
from store.ownership.divergence import DIVERGED_FILE, Divergence, read_divergence
from store.ownership.identity import (
    AbortFile,
    StoreLock,
    StoreName,
    read_name,
    refuse_foreign_kinds,
    write_name,
    writer_of,
)
from store.recovery.opening import CHECKPOINT, CONSUME_QUEUE, INDEX
from store.recovery.summary import SUMMARY_FILE
from store.recovery.tail import find_tail
from store.store_errors import StoreError
from store.tools.layout import require_directory
from store.tools.rebuild import MARK
from store.tools.reindex.store_files import WORK
from store.tools.verify.findings import Report
from store.tools.verify.log_view import LogView

_CONFIG = Path("config")
_TOPICS = _CONFIG / "topics.json"
DERIVED = (
    *map(
        Path,
        (CONSUME_QUEUE, INDEX, SINKS, LITE, "timerwheel", "timerlog", CHECKPOINT, SUMMARY_FILE, MARK, WORK),
    ),
    *(_CONFIG / name for name in ("timercheck", "timermetrics", "timermetrics.bak")),
)
"""What is derived from the log, relative to the store's root."""
_MOVED = (*DERIVED, *(_CONFIG / name for name in ("delayOffset.json", "delayOffset.json.bak")))
"""What is moved before the log: derived from it, or progress that is copied from the master."""
_BY_HAND = (
    "move all files of the store and of the directories of its CommitLog elsewhere by hand, and start the "
    "broker with empty directories"
)


@dataclass(frozen=True)
class SetAside:
    """What a resync sets aside.

    Attributes:
        store: The directory of the store.
        directory: The directory into which its files are moved.
        divergence: Where the log differs from the master's.
        log_begin: The CommitLog offset of the first record.
        log_end: The CommitLog offset after the last record.
        messages: The number of messages that end after the position of the divergence.
        is_done: False for a dry run.
    """

    store: Path
    directory: Path
    divergence: Divergence
    log_begin: int
    log_end: int
    messages: int
    is_done: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq replica resync --json` prints."""
        return {
            "store": str(self.store),
            "directory": str(self.directory),
            "master": self.divergence.master,
            "position": self.divergence.position,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "messages": self.messages,
            "commitLogFileBytes": self.divergence.commit_log_file_bytes,
            "done": self.is_done,
        }


class _Extent(NamedTuple):
    begin: int
    end: int
    messages: int


class Resync:
    """The resync of one store, which is locked; `resyncing` creates it."""

    def __init__(self, root: Path, name: StoreName, divergence: Divergence) -> None:
        self._root = root
        self._name = name
        self._divergence = divergence
        self._aside = _directory_of(root)

    def plan(self) -> SetAside:
        """Return what `run` will set aside. Raises StoreError, OSError."""
        is_moved = not (self._root / COMMIT_LOG).exists()
        extent = self._extent(self._aside if is_moved else self._root)
        return SetAside(self._root, self._aside, self._divergence, *extent)

    def _extent(self, root: Path) -> _Extent:
        """Return the ends of the log in `root`, and the number of messages that end after the divergence."""
        position = self._divergence.position
        name = read_name(root) or self._name
        log = LogView(LogPaths(root), name.commit_log_file_bytes, Report(root))
        try:
            if not log.first <= position < log.end:
                return _Extent(log.first, max(position, log.first), 0)
            file = log.file_at(position)
            found = np.zeros(walk.SCAN_FIELDS, dtype=np.int64)
            end = position - file.base
            before, _ = walk.scan_records(file.array, 0, end, file.base, False, found)
            tail = find_tail(log, file.base + int(before), check_crc=False, is_ours=True)
            return _Extent(log.first, tail.position, tail.records)
        finally:
            log.close()

    def run(self) -> None:
        """Set the log aside.

        Raises StoreError if a directory is on another file system, and OSError. Nothing is lost, and it can
        be run again.
        """
        self._create_aside()
        for path in _MOVED:
            self._move(path)
        self._sync()  # before the log is moved
        self._move(Path(COMMIT_LOG))
        self._sync()
        file_bytes = self._divergence.commit_log_file_bytes
        if file_bytes != self._name.commit_log_file_bytes:
            write_name(self._root, replace(self._name, commit_log_file_bytes=file_bytes))
        self._move(Path(DIVERGED_FILE))
        self._sync()

    def _create_aside(self) -> None:
        root, aside = self._root, self._aside
        (aside / _CONFIG).mkdir(parents=True, exist_ok=True)
        if read_name(aside) is None:
            write_name(aside, replace(self._name, commit_log_paths=(COMMIT_LOG,)))
        if (root / _TOPICS).exists():
            shutil.copy2(root / _TOPICS, aside / _TOPICS)
        if AbortFile(root).exists:
            AbortFile(aside).create()

    def _move(self, path: Path) -> None:
        source = self._root / path
        if not source.exists():
            return
        try:
            source.rename(self._aside / path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise _other_file_system(self._root, source) from error

    def _sync(self) -> None:
        for directory in (self._aside, self._root):
            if (directory / _CONFIG).is_dir():
                sync_directory(directory / _CONFIG)
            sync_directory(directory)
        sync_directory(self._root.parent)


@contextmanager
def resyncing(root: Path) -> Iterator[Resync]:
    """Lock the store at `root` and yield its resync; nothing is changed before `run` is called.

    Raises:
        StoreError: there is no store of RayMQ, replication has not stopped because of its log, a process has
            it open, its CommitLog is outside of the store, or it is a mount point or has one.
        OSError: a file cannot be read.
    """
    require_directory(root)
    root = root.resolve()
    refuse_foreign_kinds(root)
    pid = writer_of(root)
    if pid is not None:
        raise StoreError(f"process {pid} has this store open: stop that process first", root)
    name = read_name(root)
    if name is None:
        raise StoreError("not a store of RayMQ: it has no raymq.json", root)
    divergence = read_divergence(root)
    if divergence is None:
        raise StoreError(
            f"has no {DIVERGED_FILE}: its log is not known to differ from a master's. A slave writes this "
            "file when it stops for that reason; start it, and see `replication_state` of `raymq status`",
            root,
        )
    _require_own_log(root, name)
    _require_one_file_system(root)
    lock = StoreLock(root)
    lock.acquire(0)
    try:
        yield Resync(root, name, divergence)
    finally:
        lock.release()


def _require_own_log(root: Path, name: StoreName) -> None:
    """Raise StoreError unless the CommitLog is in `commitlog` of the store."""
    for path in name.commit_log_paths:
        if (root / path).resolve() != root / COMMIT_LOG:
            raise StoreError(
                f"its CommitLog is in {', '.join(name.commit_log_paths)}, but only a log in the store's own "
                f"directory {COMMIT_LOG} can be set aside; nothing was changed: {_BY_HAND}",
                root,
            )


def _require_one_file_system(root: Path) -> None:
    """Raise StoreError unless the store and what is moved are on the file system of the store's parent."""
    device = root.parent.stat().st_dev
    for path in (root, *(root / each for each in (*_MOVED, Path(COMMIT_LOG)))):
        if path.exists() and path.stat().st_dev != device:
            raise _other_file_system(root, path)


def _other_file_system(root: Path, path: Path) -> StoreError:
    return StoreError(
        f"is not on the file system of {root.parent}, so it cannot be moved beside the store; it was not "
        f"changed: {_BY_HAND}",
        path,
    )


def _directory_of(root: Path) -> Path:
    """Return the directory of the next resync, or that of an interrupted one."""
    prefix = f"{root.name}.before-resync-"
    numbers = (
        path.name.removeprefix(prefix) for path in root.parent.iterdir() if path.name.startswith(prefix)
    )
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    found = root.with_name(f"{prefix}{last}")
    is_open = last > 0 and not (found / DIVERGED_FILE).exists()
    moved = (*_MOVED, Path(COMMIT_LOG))
    if is_open and not any((root / path).exists() and (found / path).exists() for path in moved):
        return found
    return root.with_name(f"{prefix}{last + 1}")

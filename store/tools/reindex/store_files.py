"""StoreFiles: the directories, file sizes and identity of a store, to be sent to other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import Positions
from store.common.file_lock import try_lock
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors
from store.ownership.identity import StoreLock, StoreName, read_name, refuse_foreign_kinds, writer_of
from store.recovery.opening import CONSUME_QUEUE
from store.recovery.summary import DerivedSummary, read_summary
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.tools.layout import StoreSizes, find_sizes, log_directories, require_directory
from store.tools.rebuild import is_interrupted

WORK = "raymq.reindex"


@dataclass(frozen=True)
class StoreFiles:
    """The files of one store. An instance can be pickled.

    Attributes:
        root: The store's directory.
        log_paths: The directories of the CommitLog; relative ones are relative to `root`.
        sizes: The sizes of the store's files.
        store_id: The id in raymq.json; None if RocketMQ wrote the store.
        delays_ms: The delay of each delay level, which the units of delayed messages depend on.
        writer_pid: PID of the process that has the store open; None if it is stopped.
    """

    root: Path
    log_paths: tuple[Path, ...]
    sizes: StoreSizes
    store_id: str | None
    delays_ms: tuple[int, ...]
    writer_pid: int | None = None

    @property
    def is_ours(self) -> bool:
        """True if RayMQ wrote the store, so that no old records follow the end of its log."""
        return self.store_id is not None

    @property
    def work(self) -> Path:
        """The directory of the re-index, beside the store's files."""
        return self.root / WORK

    @property
    def parts(self) -> Path:
        """The directory of the parts, one per log file."""
        return self.work / "parts"

    @property
    def new(self) -> Path:
        """The directory of the new consume queues and index files, before they are put in place."""
        return self.work / "new"

    @property
    def queues(self) -> Path:
        """The directory of the consume queues."""
        return self.root / CONSUME_QUEUE

    @property
    def new_queues(self) -> Path:
        """The directory of the new consume queues."""
        return self.new / CONSUME_QUEUE

    def open_log(self, begin: int = 0, end: int = 0) -> CommitLog:
        """Open the log to read it; its records are in the CommitLog offsets [begin, end).

        Raises StoreError if files are missing or have a wrong size, or if this machine has another store.
        """
        self.check_machine()
        positions = Positions()
        positions.set_all(begin, end)
        paths = LogPaths(self.root, self.log_paths)
        return CommitLog(paths, self.sizes.log_file_bytes, positions, read_only=True)

    def check_machine(self) -> None:
        """Raise StoreError if the files of this store are not on the machine on which this process runs."""
        name = read_name(self.root) if self.root.is_dir() else None
        if not self.root.is_dir() or (name.store_id if name else None) != self.store_id:
            raise StoreError(
                "this machine does not have the files of the store: run the job where the store is, for"
                " example with the node resource of its broker",
                self.root,
            )

    def summary(self) -> DerivedSummary | None:
        """Return the content of raymq.derived, or None if it is missing, damaged or of another store."""
        return read_summary(self.root, self.store_id) if self.store_id is not None else None


def files_of(root: Path, name: StoreName) -> StoreFiles:
    """Return the files of the store at `root`, which this process has open and whose raymq.json is `name`."""
    return StoreFiles(
        root,
        tuple(map(Path, name.commit_log_paths)),
        find_sizes(root, (), name),
        name.store_id,
        (),
        os.getpid(),
    )


def find_store(
    root: Path, log_paths: Sequence[Path], message_delay_level: str | None, *, may_be_open: bool = False
) -> StoreFiles:
    """Return the files of the store at `root`.

    Args:
        root: The directory of the store.
        log_paths: The directories of the log, if they are neither in raymq.json nor `commitlog`.
        message_delay_level: The broker's delay levels, if they are not RocketMQ's.
        may_be_open: Accept a store that a broker of RayMQ has open.

    Raises:
        StoreError: There is no store, its kind is not supported, a process has it open, or a rebuild of it
            was interrupted, or `message_delay_level` is invalid.
    """
    root = root.absolute()
    require_directory(root)
    refuse_foreign_kinds(root)
    name = read_name(root)
    pid = writer_of(root)
    if pid is not None and not may_be_open:
        raise StoreError(
            f"process {pid} has this store open: stop the broker (`raymq down`, `raymq drain BROKER`) first",
            root,
        )
    if pid is not None and name is None:
        raise StoreError(f"process {pid}, which is not a broker of RayMQ, has this store open: stop it", root)
    if is_interrupted(root):
        raise StoreError("a rebuild was interrupted: run `raymq store rebuild` again to resume it", root)
    paths = log_directories(root, log_paths, name)
    given = {} if message_delay_level is None else {"message_delay_level": message_delay_level}
    try:
        delays_ms = StoreSettings.model_validate(given).delay_levels_ms()
    except ValueError as error:
        raise StoreError(f"message_delay_level={message_delay_level!r} is invalid: {error}", root) from error
    files = StoreFiles(
        root,
        tuple(paths),
        find_sizes(root, paths, name),
        name.store_id if name is not None else None,
        tuple(delays_ms),
        pid,
    )
    descriptors = Descriptors(1, read_only=True)
    queues = ConsumeQueueTable(root / CONSUME_QUEUE, files.sizes.queue_file_bytes, descriptors)
    queues.add_all_on_disk()  # refuses LMQ queues
    return files


@contextmanager
def locked(files: StoreFiles) -> Iterator[None]:
    """Keep other re-index jobs, and brokers if the store is stopped, from the store in the `with` block.

    Raises StoreLocked, StoreError.
    """
    root = os.open(files.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not try_lock(root):
            raise StoreError("another re-index of this store is running: wait for its end", files.root)
        if files.writer_pid is not None:
            yield
            return
        lock = StoreLock(files.root)
        lock.acquire(0)
        paths = LogPaths(files.root, files.log_paths)
        try:
            paths.lock()
            yield
        finally:
            paths.unlock()
            lock.release()
    finally:
        os.close(root)

"""StoreFiles: the directories, file sizes and identity of a stopped store, to be sent to other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import Positions
from store.ownership.identity import StoreLock, read_name, refuse_foreign_kinds, writer_of
from store.recovery.summary import DerivedSummary, read_summary
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.tools.layout import StoreSizes, find_sizes, log_directories, require_directory

WORK = "raymq.reindex"


@dataclass(frozen=True)
class StoreFiles:
    """The files of one stopped store. An instance can be pickled.

    Attributes:
        root: The store's directory.
        log_paths: The directories of the CommitLog; relative ones are relative to `root`.
        sizes: The sizes of the store's files.
        store_id: The id in raymq.json; None if RocketMQ wrote the store.
        delays_ms: The delay of each delay level, which the units of delayed messages depend on.
    """

    root: Path
    log_paths: tuple[Path, ...]
    sizes: StoreSizes
    store_id: str | None
    delays_ms: tuple[int, ...]

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


def find_store(root: Path, log_paths: Sequence[Path], message_delay_level: str | None) -> StoreFiles:
    """Return the files of the store at `root`.

    `log_paths` are the directories of the log, if they are neither in raymq.json nor `commitlog`.
    `message_delay_level` has the broker's delay levels, if they are not RocketMQ's. Raises StoreError if
    there is no store, the store is of an unsupported kind, or a process has it open.
    """
    root = root.absolute()
    require_directory(root)
    refuse_foreign_kinds(root)
    pid = writer_of(root)
    if pid is not None:
        raise StoreError(
            f"process {pid} has this store open: stop the broker (`raymq down`, `raymq drain BROKER`) first",
            root,
        )
    name = read_name(root)
    paths = log_directories(root, log_paths, name)
    given = {} if message_delay_level is None else {"message_delay_level": message_delay_level}
    return StoreFiles(
        root,
        tuple(paths),
        find_sizes(root, paths, name),
        name.store_id if name is not None else None,
        tuple(StoreSettings.model_validate(given).delay_levels_ms()),
    )


@contextmanager
def locked(files: StoreFiles) -> Iterator[None]:
    """Keep brokers from opening the store inside the `with` block. Raises StoreLocked, StoreError."""
    lock = StoreLock(files.root)
    lock.acquire(0)
    paths = LogPaths(files.root, files.log_paths)
    try:
        paths.lock()
        yield
    finally:
        paths.unlock()
        lock.release()

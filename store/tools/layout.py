"""What is found at a store's place before it is opened: its directories, and how long its files are."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from store.commitlog.log_paths import COMMIT_LOG
from store.index.index_file import index_file_bytes
from store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.ownership.identity import StoreName
from store.recovery.opening import CONSUME_QUEUE, INDEX
from store.store_errors import StoreError
from store.store_settings import StoreSettings


def require_directory(root: Path) -> None:
    """Raise StoreError where there is no directory."""
    if not root.is_dir():
        raise StoreError("is no directory" if root.exists() else "no such directory", root)


def log_directories(root: Path, given: Sequence[Path], name: StoreName | None) -> list[Path]:
    """Where the log of the store at `root` is: as given, as its name says, or where RocketMQ has it.

    Raises StoreError when one of them is missing.
    """
    directories = [*given] or [Path(path) for path in (name.commit_log_paths if name else (COMMIT_LOG,))]
    for directory in directories:
        if not (root / directory).is_dir():
            raise StoreError(f"no store: there is no directory {directory} in it", root)
    return directories


class StoreSizes(NamedTuple):
    """The sizes of a store's files, and how many slots and entries an index file has."""

    log_file_bytes: int
    queue_file_bytes: int
    index_slots: int
    index_entries: int


def _first_size(paths: list[Path], fallback_bytes: int) -> int:
    """The size that most of these files have."""
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    return max(set(sizes), key=sizes.count) if sizes else fallback_bytes


def find_sizes(root: Path, log_paths: Sequence[Path], name: StoreName | None) -> StoreSizes:
    """The sizes of a store's files: as raymq.json says, else from the files themselves."""
    if name is not None:
        return StoreSizes(
            name.commit_log_file_bytes, name.consume_queue_file_bytes, name.index_slots, name.index_entries
        )
    defaults = StoreSettings()
    logs = sorted(path for directory in log_paths for path in (root / directory).glob("*"))
    queues = sorted((root / CONSUME_QUEUE).glob("*/*/*"))
    index_bytes = _first_size(
        sorted((root / INDEX).glob("*")), index_file_bytes(defaults.index_slots, defaults.index_entries)
    )
    # One number for two: RocketMQ's default, and whoever scales it down, has four entries for each slot.
    slots = (index_bytes - HEADER_BYTES) // (SLOT_BYTES + 4 * ENTRY_BYTES)
    return StoreSizes(
        _first_size(logs, defaults.commit_log_file_bytes),
        _first_size(queues, defaults.consume_queue_file_bytes),
        max(slots, 1),
        (index_bytes - HEADER_BYTES - SLOT_BYTES * max(slots, 1)) // ENTRY_BYTES,
    )

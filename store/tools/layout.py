"""Find the directories and file sizes of a store without opening it."""

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
    """Raise StoreError if `root` is not a directory."""
    if not root.is_dir():
        raise StoreError("is not a directory" if root.exists() else "no such directory", root)


def log_directories(root: Path, given: Sequence[Path], name: StoreName | None) -> list[Path]:
    """Return the directories of the CommitLog.

    They are those of `given` if it is not empty, otherwise those in raymq.json, otherwise `commitlog`. Raises
    StoreError if one of them does not exist.
    """
    directories = [*given] or [Path(path) for path in (name.commit_log_paths if name else (COMMIT_LOG,))]
    for directory in directories:
        if not (root / directory).is_dir():
            raise StoreError(f"not a store: it has no directory {directory}", root)
    return directories


class StoreSizes(NamedTuple):
    """The file sizes of a store, and the number of slots and entries of an index file."""

    log_file_bytes: int
    queue_file_bytes: int
    index_slots: int
    index_entries: int


def _first_size(paths: list[Path], fallback_bytes: int) -> int:
    """Return the size that most of the files at `paths` have, or `fallback_bytes` if there are no files."""
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    return max(set(sizes), key=sizes.count) if sizes else fallback_bytes


def find_sizes(root: Path, log_paths: Sequence[Path], name: StoreName | None) -> StoreSizes:
    """Return the file sizes of a store: those in raymq.json, or else those of the existing files."""
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
    # The file size alone does not determine slots and entries. Assume four entries for each slot, as in
    # RocketMQ's defaults.
    slots = (index_bytes - HEADER_BYTES) // (SLOT_BYTES + 4 * ENTRY_BYTES)
    return StoreSizes(
        _first_size(logs, defaults.commit_log_file_bytes),
        _first_size(queues, defaults.consume_queue_file_bytes),
        max(slots, 1),
        (index_bytes - HEADER_BYTES - SLOT_BYTES * max(slots, 1)) // ENTRY_BYTES,
    )

"""What a replica removes from its store before it opens it, to get it from the leader or from the log again.

    raymq.raft          `joinOffset`: a log that begins earlier is another one, of which the leader has no
                        byte left; it is removed, with all that is derived from it
    raymq.raft.rebuild  damaged records are being repaired: consume queues and index, which may have what the
                        damaged ones said, are removed, and derived from the log when the store is opened;
                        queues of which the log has no record are kept if it has no full set of the tables,
                        which has their ends, too

Both can be interrupted at any step: the next start resumes. The first file of the log is removed last,
because it shows that the log is the old one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from actors.broker.replication.raft.group_tables import full_set_from
from store.commitlog.log_paths import LogPaths
from store.commitlog.mapped_file import file_name
from store.common.logs import get_logger
from store.consumequeue.removal import remove_derivable_queues
from store.disk.files import replace_file, sync_directory
from store.dispatch.saved_sink import SINKS
from store.ownership.identity import StoreLock, StoreName, read_name
from store.recovery.opening import CONSUME_QUEUE, INDEX
from store.recovery.summary import SUMMARY_FILE
from store.tools.resync import DERIVED

_log = get_logger(__name__)

REBUILD_FILE = "raymq.raft.rebuild"


def require_rebuild(root: Path) -> None:
    """Record, durably, that the next start derives consume queues and index again. Raises OSError."""
    replace_file(root / REBUILD_FILE, b"")


def forget_rebuild(root: Path) -> None:
    """Undo `require_rebuild`: only bodies of records were damaged. Raises OSError."""
    (root / REBUILD_FILE).unlink()
    sync_directory(root)


def renew_store(root: Path, join_offset: int, lock_timeout_ms: int) -> None:
    """Remove what a store must not be opened with.

    Args:
        root: The store, which is not open.
        join_offset: Where its log must begin at the earliest; 0: anywhere.
        lock_timeout_ms: How long to wait for the lock of the store.

    Raises StoreError if another process has the store open, and OSError.
    """
    old = _old_log(root, join_offset)
    is_rebuild = (root / REBUILD_FILE).exists()
    if not old and not is_rebuild:
        return
    lock = StoreLock(root)
    lock.acquire(lock_timeout_ms)
    try:
        if old:
            _log.warning("raft_log_removed", path=str(root), join_offset=join_offset, files=len(old))
            remove([*_present(root, DERIVED), *old])
        if is_rebuild:
            _log.warning("raft_derived_files_removed", path=str(root))
            remove_derived(root)
            remove([root / REBUILD_FILE])
    finally:
        lock.release()


def remove_derived(root: Path) -> None:
    """Remove what can be derived again from the log of a store, which is not open.

    Raises StoreError if `raymq.json` or a queue cannot be read, and OSError.
    """
    remove(_present(root, map(Path, (SUMMARY_FILE, INDEX, SINKS))))
    name = read_name(root)
    if name is not None:
        log_min = min(_log_files(root, name), default=0)
        has_all_ends = full_set_from(root) >= log_min
        remove_derivable_queues(
            root / CONSUME_QUEUE, name.consume_queue_file_bytes, 0 if has_all_ends else log_min
        )


def must_begin_again(root: Path, join_offset: int) -> bool:
    """Return True if the log begins before `join_offset`, so that the next start removes it."""
    return bool(_old_log(root, join_offset))


def _old_log(root: Path, join_offset: int) -> Sequence[Path]:
    """Return the files of the log, the first one last, if it begins before `join_offset`."""
    name = read_name(root)
    if not join_offset or name is None:
        return ()
    directory_of = _log_files(root, name)
    if not directory_of or min(directory_of) >= join_offset:
        return ()
    return [directory_of[base] / file_name(base) for base in sorted(directory_of, reverse=True)]


def _log_files(root: Path, name: StoreName) -> Mapping[int, Path]:
    """Return the directory of each log file by the CommitLog offset at which it begins."""
    return LogPaths(root, tuple(map(Path, name.commit_log_paths))).scan(name.commit_log_file_bytes)


def _present(root: Path, paths: Iterable[Path]) -> Sequence[Path]:
    return [root / path for path in paths if (root / path).exists()]


def remove(paths: Sequence[Path]) -> None:
    """Remove files and directories in this order, durably. Raises OSError."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        sync_directory(path.parent)

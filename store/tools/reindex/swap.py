"""Put the new consume queues and index files in place of the old ones, by rename.

    1. raise the epoch, create `abort`, write raymq.derived: nothing is dispatched yet
    2. move the old directories into the work directory, and the new ones into the store
    3. write raymq.derived with the state of the new files, remove `abort` and the work directory

After a kill at any point a broker can open the store: until step 3 it compares whatever it finds with the
log, and rebuilds what is missing. The next re-index removes the work directory that a kill left behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors, replace_file, sync_directory, sync_file_system
from store.index.index_file import IndexSnapshot
from store.ownership.identity import AbortFile, WriterEpoch
from store.recovery.opening import CONSUME_QUEUE, INDEX
from store.recovery.summary import DerivedSummary, QueueSnapshots, summary_path
from store.recovery.tail import Tail
from store.store_errors import StoreError
from store.tools.reindex.queues import BuiltQueue
from store.tools.reindex.store_files import StoreFiles

_DIRECTORIES = (CONSUME_QUEUE, INDEX)


def require_renamable(files: StoreFiles) -> None:
    """Raise StoreError if the directories of queues or index cannot be replaced by rename."""
    device = files.root.stat().st_dev
    for name in _DIRECTORIES:
        path = files.root / name
        if path.is_symlink() or (path.exists() and path.stat().st_dev != device):
            raise StoreError(
                "is a link, or on another file system than the store, so it cannot be replaced by rename:"
                " use `raymq store rebuild`",
                path,
            )


def prepare_work(files: StoreFiles) -> None:
    """Create an empty work directory; remove the one that a killed job left behind. Raises OSError."""
    remove_work(files)
    files.parts.mkdir(parents=True)
    for name in _DIRECTORIES:
        (files.new / name).mkdir(parents=True)


def remove_work(files: StoreFiles) -> None:
    """Remove the work directory, if it exists. Raises OSError."""
    if files.work.exists():
        shutil.rmtree(files.work)


def swap(
    files: StoreFiles,
    log_begin: int,
    tail: Tail,
    queues: Sequence[BuiltQueue],
    index_files: list[IndexSnapshot] | None,
) -> None:
    """Replace the consume queues and index files of the store by those in the work directory.

    The caller holds the store's lock. `log_begin` is the CommitLog offset at which the log begins, `tail` its
    end. `index_files` are the states of the new index files, or None for a store without an index.

    Raises OSError or StoreError; a broker can open the store nevertheless, and a re-index may run again.
    """
    sync_file_system(files.work)
    abort = AbortFile(files.root)
    had_abort = abort.exists
    if files.is_ours:
        epoch = WriterEpoch(files.root)
        epoch.raise_epoch()
        epoch.close()
    abort.create()
    nothing = Tail(log_begin, -1, 0, 0, tail.holes)
    _write_summary(files, log_begin, nothing, [], None if index_files is None else [])
    _rename(files)
    _write_summary(files, log_begin, tail, queues, index_files)
    if not had_abort:
        abort.remove()
    remove_work(files)


def _rename(files: StoreFiles) -> None:
    old = files.work / "old"
    old.mkdir()
    for name in _DIRECTORIES:
        path = files.root / name
        if path.exists():
            path.rename(old / name)
        (files.new / name).rename(path)
    sync_directory(files.root)


def _write_summary(
    files: StoreFiles,
    log_begin: int,
    tail: Tail,
    queues: Sequence[BuiltQueue],
    index_files: list[IndexSnapshot] | None,
) -> None:
    """Write raymq.derived, for a store in which these queues and index files are dispatched up to `tail`."""
    path: Path = summary_path(files.root)
    if files.store_id is None:  # a store of RocketMQ has no such file
        path.unlink(missing_ok=True)
        return
    table = ConsumeQueueTable(
        files.root / CONSUME_QUEUE, files.sizes.queue_file_bytes, Descriptors(1, read_only=True)
    )
    for topic, queue_id, snapshot, files_end in queues:
        table.get(topic, queue_id).set_extent(snapshot, files_end)
    snapshots = QueueSnapshots(table)
    snapshots.finish()
    last = tail.last_record if tail.last_record < tail.position else -1
    former = files.summary()
    is_replicated = former is not None and former.is_replicated
    summary = DerivedSummary(
        files.store_id, tail.position, last, log_begin, {}, index_files, tail.holes, is_replicated
    )
    replace_file(path, snapshots.encode(summary))

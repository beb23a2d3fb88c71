"""Removes the consume queues that can be derived again from the log of a store that is not open.

log                        | file 3 | file 4 |
queue with a record there  removed
queue without              kept: new messages continue at its end, which no record in the log shows
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors, sync_directory

_OPEN_FILES: Final = 64
_ANY_END: Final = 1 << 62


def remove_derivable_queues(root: Path, file_bytes: int, log_min: int) -> None:
    """Remove the queues below `root`, except those whose records were all deleted with their log files.

    After an interruption it can be called again.

    Args:
        root: The directory `consumequeue` of a store.
        file_bytes: The size of a consume queue file.
        log_min: The CommitLog offset at which the log begins.

    Raises OSError, and StoreError if a file cannot be read.
    """
    kept = set(_ended_before(root, file_bytes, log_min)) if log_min else set()
    for topic in sorted(root.iterdir()) if root.is_dir() else ():
        if not topic.is_dir():
            topic.unlink()
            continue
        for directory in sorted(topic.iterdir()):
            if directory not in kept:
                _remove(directory)
        if not any(topic.iterdir()):
            topic.rmdir()
        else:
            sync_directory(topic)
    if root.is_dir():
        sync_directory(root)


def _ended_before(root: Path, file_bytes: int, log_min: int) -> Iterator[Path]:
    """Yield the directories of the queues that have units, but none of a record at or after `log_min`."""
    descriptors = Descriptors(_OPEN_FILES, read_only=True)
    try:
        for queue, _, _ in ConsumeQueueTable(root, file_bytes, descriptors).load(_ANY_END, {}):
            if queue.next_offset and queue.end_physical_offset <= log_min:
                yield Path(queue.directory)
    finally:
        descriptors.close()


def _remove(directory: Path) -> None:
    """Remove a directory; its last file last: until then it is found to end in the log."""
    if not directory.is_dir():
        directory.unlink()
        return
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            path.unlink()
    shutil.rmtree(directory)

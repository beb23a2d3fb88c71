"""Flushing the CommitLog to disk.

The thread that owns the store creates a job, another thread runs it, and the owner handles the result. A
failed fdatasync is final (design section 3, invariant 7): the kernel may have marked the lost pages clean, so
that a retry would report success without writing them.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from store.disk.files import sync_directory


class FlushJob:
    """Flushes the CommitLog to disk up to the CommitLog offset `target`.

    `run` may be called in any thread, once.
    """

    __slots__ = ("_descriptors", "_directories", "target", "timestamp")

    def __init__(
        self, target: int, timestamp: int, descriptors: Sequence[int], directories: Collection[Path]
    ) -> None:
        """Create a job.

        Args:
            target: The CommitLog offset before which all data will be durable after the flush.
            timestamp: storeTimestamp of the last record before `target`, in ms.
            descriptors: Files to flush. The job duplicates the descriptors, because the log may close its own
                meanwhile.
            directories: Directories to sync because files were added or removed.
        """
        self.target = target
        self.timestamp = timestamp
        self._descriptors = [os.dup(descriptor) for descriptor in descriptors]
        self._directories = directories

    def run(self) -> None:
        """Call fdatasync on the files and fsync on the directories. Raises OSError."""
        descriptors, self._descriptors = self._descriptors, []
        try:
            for descriptor in descriptors:
                os.fdatasync(descriptor)  # not mmap.flush, which holds the GIL
            for directory in self._directories:
                sync_directory(directory)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

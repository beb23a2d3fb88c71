"""Flushing the CommitLog to disk.

The thread that owns the store creates a job, another thread runs it, and the owner handles the result. A
failed fdatasync is final (docs/design.md#invariant-7): the kernel may have marked the lost pages clean, so
that a retry would report success without writing them.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from store.commitlog.commit_log import CommitLog
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


class LogFlush:
    """The flushes of one CommitLog: at most one job in flight, which `positions.flushed` follows."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._in_flight: FlushJob | None = None
        self._directories: set[Path] = set()  # the directories that the job in flight syncs

    def begin(self, timestamp: int) -> FlushJob | None:
        """Return a job that flushes all written data; None if all is flushed or a job is in flight.

        `timestamp` is the storeTimestamp of the last record, in ms.
        """
        positions = self._log.positions
        if self._in_flight is not None or positions.written == positions.flushed:
            return None
        self._directories, self._log.dirty_directories = self._log.dirty_directories, set()
        descriptors = self._log.descriptors(positions.flushed, positions.written)
        self._in_flight = FlushJob(positions.written, timestamp, descriptors, self._directories)
        return self._in_flight

    def end(self, job: FlushJob, *, is_flushed: bool) -> bool:
        """Handle the result of a job. Return False, and ignore it, if the job was cancelled."""
        if job is not self._in_flight:
            return False
        self._in_flight = None
        if is_flushed:
            self._log.positions.flushed = job.target
        return True

    def cancel(self) -> None:
        """Ignore the result of the job in flight, because the log is truncated.

        The job may have begun before the bytes that are written next, so it proves nothing about them.
        """
        if self._in_flight is not None:
            self._in_flight = None
            self._log.dirty_directories |= self._directories

"""Making the log durable. The owner of the store makes a job, any thread runs it, the owner takes the result.

A failed fdatasync is final (design law 7): the kernel may have marked the lost pages clean, so trying again
would only seem to work.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from store.disk.files import sync_directory


class FlushJob:
    """fdatasync of the log up to `target`. `run` may be called on any thread, once."""

    __slots__ = ("_descriptors", "_directories", "target", "timestamp")

    def __init__(
        self, target: int, timestamp: int, descriptors: Sequence[int], directories: Collection[Path]
    ) -> None:
        """`descriptors` are duplicated here, so that the log may close its own; `timestamp` is the last
        record's.
        """
        self.target = target
        self.timestamp = timestamp
        self._descriptors = [os.dup(descriptor) for descriptor in descriptors]
        self._directories = directories

    def run(self) -> None:
        """Do it. Raises OSError."""
        descriptors, self._descriptors = self._descriptors, []
        try:
            for descriptor in descriptors:
                os.fdatasync(descriptor)  # not mmap.flush: that holds the GIL
            for directory in self._directories:
                sync_directory(directory)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

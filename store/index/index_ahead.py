"""Create the next index file in the background, before dispatch needs it.

An index file is named by the time of its first record, which is not known in advance. The prepared file
therefore has a temporary name in the store's root, where neither RocketMQ nor a restart takes it for an index
file, and is renamed when it is used. A file left by a killed process is deleted at the next start. If the
file cannot be created (for example, because the disk is full), creation is retried after one second; dispatch
creates the file itself when it needs one, and reports the error if that fails.
"""

from functools import partial
from pathlib import Path

from store.commitlog.allocate import RETRY_NS
from store.common.background import Lane
from store.common.clock import Clock
from store.disk.touch_ahead import AHEAD_BYTES, touch
from store.index.index_file import IndexFile, index_file_bytes
from store.index.index_service import IndexService
from store.store_settings import StoreSettings

_NAME = "index.ahead"


class IndexFileJob:
    """Background job that creates an empty index file at `path`.

    The attribute `made` then contains the file.
    """

    def __init__(self, path: Path, slots: int, capacity: int) -> None:
        self.made: IndexFile | None = None
        self._path = path
        self._slots = slots
        self._capacity = capacity

    def run(self) -> None:
        """Create the file and load its first pages into memory. Raises OSError."""
        self.made = IndexFile.create(self._path, self._slots, self._capacity, self._path.parent)
        touch(str(self._path), 0, index_file_bytes(self._slots, 1) + AHEAD_BYTES)


class IndexFileAhead:
    """Creates the next index file of one store before it is needed. Used only on the store's thread."""

    def __init__(
        self,
        root: Path,
        index: IndexService | None,
        lane: Lane,
        clock: Clock,
        settings: StoreSettings,
    ) -> None:
        """Delete the prepared files that a killed process left behind. Raises OSError.

        If the setting `preallocate` is off, no file is created in advance.
        """
        self._path = root / _NAME
        self._index = index
        self._lane = lane
        self._clock = clock
        self._settings = settings
        self._is_under_way = False
        self._retry_ns = 0
        for leftover in (self._path, *root.glob(f"*-{_NAME}.new"), *root.glob(f"index-{'[0-9]' * 17}.new")):
            leftover.unlink(missing_ok=True)

    def prepare_next(self) -> None:
        """Start to create the next index file if it will be needed soon.

        Called after each dispatch step.
        """
        index = self._index
        if index is None or not index.needs_next_file or self._is_under_way:
            return
        if self._settings.preallocate and self._clock.monotonic_ns() >= self._retry_ns:
            self._is_under_way = True
            job = IndexFileJob(self._path, index.slots, index.capacity)
            self._lane.submit(job.run, partial(self._on_created, job))

    def _on_created(self, job: IndexFileJob, error: Exception | None) -> None:
        self._is_under_way = False
        if error is not None:
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
        elif self._index is not None:
            self._index.next_file = job.made

    def discard(self) -> None:
        """Delete the prepared file, if there is one. Raises OSError."""
        index = self._index
        if index is not None and index.next_file is not None:
            file, index.next_file = index.next_file, None
            file.close()
            file.path.unlink(missing_ok=True)

"""The next index file is made ahead of need, in the background, so that dispatch finds it there.

It is named by its first record, which nobody knows yet: so it waits in the store's root, where neither
RocketMQ nor a start of ours takes it for a part of the index, and is renamed when it is needed. What a kill
leaves of it the next start removes. When it cannot be made, for a full disk say, dispatch makes it when it
needs it, and tells the error; it is tried again ahead of that after a second.
"""

from functools import partial
from pathlib import Path

from store.clock import Clock
from store.commitlog.allocate import RETRY_NS
from store.disk.touch_ahead import AHEAD_BYTES, touch
from store.index.index_file import IndexFile, index_file_bytes
from store.index.index_service import IndexService
from store.jobs import Lane
from store.store_settings import StoreSettings

_NAME = "index.ahead"


class IndexFileJob:
    """Makes an empty index file at `path`; `made` is it."""

    def __init__(self, path: Path, slots: int, capacity: int) -> None:
        self.made: IndexFile | None = None
        self._path = path
        self._slots = slots
        self._capacity = capacity

    def run(self) -> None:
        """Do it. Raises OSError."""
        self.made = IndexFile.create(self._path, self._slots, self._capacity, self._path.parent)
        touch(str(self._path), 0, index_file_bytes(self._slots, 1) + AHEAD_BYTES)


class IndexFileAhead:
    """Has the next file of one store's index made. Belongs to the store's thread."""

    def __init__(
        self,
        root: Path,
        index: IndexService | None,
        lane: Lane,
        clock: Clock,
        settings: StoreSettings,
    ) -> None:
        """Removes what a kill has left. Raises OSError.

        Without `preallocate` a file is made when it is needed.
        """
        self._path = root / _NAME
        self._index = index
        self._lane = lane
        self._clock = clock
        self._settings = settings
        self._is_under_way = False
        self._again_ns = 0
        for left in (self._path, *root.glob(f"*-{_NAME}.new"), *root.glob(f"index-{'[0-9]' * 17}.new")):
            left.unlink(missing_ok=True)

    def look(self) -> None:
        """After a dispatch: ask for the next file if it will soon be needed."""
        index = self._index
        if index is None or not index.missing_next or self._is_under_way:
            return
        if self._settings.preallocate and self._clock.monotonic_ns() >= self._again_ns:
            self._is_under_way = True
            job = IndexFileJob(self._path, index.slots, index.capacity)
            self._lane.submit(job.run, partial(self._take, job))

    def _take(self, job: IndexFileJob, error: Exception | None) -> None:
        self._is_under_way = False
        if error is not None:
            self._again_ns = self._clock.monotonic_ns() + RETRY_NS
        elif self._index is not None:
            self._index.next_file = job.made

    def discard(self) -> None:
        """Remove what was made ahead. Raises OSError."""
        index = self._index
        if index is not None and index.next_file is not None:
            file, index.next_file = index.next_file, None
            file.close()
            file.path.unlink(missing_ok=True)

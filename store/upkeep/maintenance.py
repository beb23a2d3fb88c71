"""Maintenance: preallocates files, removes deleted topics, and makes checkpoints.

All waiting for the disk is done in the background.
"""

from functools import partial
from pathlib import Path

from store.commitlog.positions import Callback
from store.common.clock import Clock
from store.common.logs import get_logger
from store.consumequeue.table import REMOVED
from store.disk.files import sync_directory
from store.disk.retired import RemoveTreeJob
from store.disk.touch_ahead import TouchAhead, touch, touch_sequentially
from store.dispatch.dispatcher import DispatchStep
from store.index.index_ahead import IndexFileAhead
from store.recovery.opening import Recovered, StoreParts
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.upkeep.checkpoints import Checkpoints

_log = get_logger(__name__)


class Maintenance:
    """Background maintenance of one store; the store's `step` calls `turn`."""

    def __init__(
        self,
        root: Path,
        settings: StoreSettings,
        store_id: str,
        clock: Clock,
        parts: StoreParts,
        recovered: Recovered,
    ) -> None:
        self._parts = parts
        background = parts.background.lane("store-background")
        # A separate lane: deleting the files of 20,000 queues may take a minute.
        self._removals = parts.background.lane("store-removals")
        self._is_closing = False
        self.checkpoints = Checkpoints(root, settings, store_id, clock, parts, recovered, background)
        self._allocator = parts.allocator
        self._index_ahead = IndexFileAhead(root, parts.index, background, clock, settings)
        # A separate lane: a checkpoint may take seconds, and appends do not wait for pages to be touched.
        self._touches = parts.background.lane("store-touch")
        self._log_touches = TouchAhead(self._touches, parts.positions.written, touch_sequentially)
        self._index_touches = TouchAhead(self._touches, 0, touch)
        if parts.index is not None and (file := parts.index.last) is not None:
            # After a start the hash slots are not in memory, and the first dispatch accesses them at random.
            self._touches.submit(partial(touch, str(file.path), 0, file.slots_end))
        for leftover in root.glob(f"{REMOVED}*"):
            self._remove(self._removal(leftover))

    def on_step(self, step: DispatchStep) -> None:
        """Record a completed dispatch step, and prepare the index file that later steps will need."""
        self.checkpoints.add_step(step)
        self._index_ahead.prepare_next()
        if self._parts.index is not None and (file := self._parts.index.last) is not None:
            self._index_touches.look(str(file.path), 0, file.size_bytes, file.written_bytes)

    def turn(self) -> None:
        """Start the background tasks that are due; called by every `step` of the store."""
        written = self._parts.positions.written
        if written > self._allocator.look_after:
            self._allocator.look(self._parts.log.end)
        if written >= self._log_touches.look_at:
            file = self._parts.log.file_at(written - 1)
            self._log_touches.look(file.name, file.base, file.size_bytes, written)
        while self._parts.queues.removed:  # at once: without a checkpoint the next start reads the whole log
            self.remove_soon(self._removal(self._parts.queues.removed.pop()), lambda _: None)
        self.checkpoints.turn()

    def take_out_topic(self, topic: str) -> tuple[int, RemoveTreeJob]:
        """Remove all queues of a topic from the table of consume queues.

        Returns the number of queues, and a job that deletes their files. Raises OSError.
        """
        removed, directory = self._parts.queues.take_out_topic(topic)
        return removed, self._removal(directory)

    def _removal(self, path: Path) -> RemoveTreeJob:
        return RemoveTreeJob(path, lambda: self._is_closing)

    def remove_soon(self, removal: RemoveTreeJob, callback: Callback) -> None:
        """Run a job that deletes files in the background.

        `callback` is called when a checkpoint has made the deletion durable.
        """
        self._remove(removal)
        self.checkpoints.on_next_checkpoint(callback)

    def _remove(self, removal: RemoveTreeJob) -> None:
        def done(error: Exception | None) -> None:
            if error is not None:
                _log.warning("queue_removal_failed", path=str(removal.path), error=str(error))

        self._removals.submit(removal.run, done)

    def fail(self, error: StoreError) -> None:
        """Call the callbacks of all callers that wait for a checkpoint with this error."""
        self.checkpoints.fail(error)

    def finish(self) -> None:
        """Wait for file preallocation and for the checkpoint under way."""
        self._allocator.finish()
        self.checkpoints.finish()

    def close(self) -> None:
        """Stop the background work. The next start deletes the files that are not deleted yet."""
        self._is_closing = True
        self._allocator.close()
        self.finish()
        self._removals.finish()
        self._index_ahead.discard()

    def close_cleanly(self) -> None:
        """Make the last checkpoint; the log must be flushed and dispatched. Raises OSError."""
        log = self._parts.log
        self._allocator.discard()
        self._index_ahead.discard()
        if log.bases:
            log.remove_unused_files()
            for directory in log.dirty_directories:
                sync_directory(directory)
        self.checkpoints.log_flushed(self.checkpoints.dispatched_timestamp)
        self.checkpoints.checkpoint_now()

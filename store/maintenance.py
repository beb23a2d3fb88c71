"""What a store does beside appending and reading: files ahead of need, and checkpoints.

Disk waits run in the background.
"""

from pathlib import Path

from store.background import AllocateJob, Background, CheckpointJob
from store.clock import Clock
from store.dispatch import Step
from store.files import sync_directory
from store.logs import get_logger
from store.mapped_file import allocate_file, file_name
from store.opening import CHECKPOINT, StoreParts
from store.settings import StoreSettings
from store.summary import DerivedSummary, summary_path

_log = get_logger(__name__)


class Maintenance:
    """Belongs to one store and is driven by its ticks."""

    def __init__(
        self, root: Path, settings: StoreSettings, store_id: str, clock: Clock, parts: StoreParts
    ) -> None:
        self._root = root
        self._settings = settings
        self._store_id = store_id
        self._clock = clock
        self._parts = parts
        self._log = parts.log
        self._positions = parts.positions
        self._background = Background()
        self._allocating: int | None = None
        self._last_record = parts.tail.last_record
        self._dispatched_timestamp = parts.tail.last_timestamp
        self._noted_position = -1
        self._checkpoint_is_running = False
        self._checkpoint_due_ns = clock.monotonic_ns() + settings.checkpoint_interval_ms * 1_000_000
        self._allocate_at = -1  # when `written` passes this, the next file is allocated

    def checkpoint_soon(self) -> None:
        """Something derived has changed beside dispatch: the next checkpoint is not left out."""
        self._noted_position = -1

    def note(self, step: Step) -> None:
        """A dispatch step has been done."""
        if step.last_record >= 0:
            self._last_record = step.last_record
            self._dispatched_timestamp = step.timestamp

    def turn(self) -> None:
        """Once per tick: take what has ended, start what is due."""
        if self._background.has_ended_jobs:
            self._collect()
        if self._positions.written > self._allocate_at:
            self._allocate_ahead()
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._checkpoint_due_ns:
            self._checkpoint_due_ns = now_ns + self._settings.checkpoint_interval_ms * 1_000_000
            if not self._checkpoint_is_running and self._positions.dispatched != self._noted_position:
                self._checkpoint_is_running = True
                self._background.submit(self._checkpoint_job())

    # ---- files ahead of need -------------------------------------------------------------------------------

    def _allocate_ahead(self) -> None:
        """When the last file is half full, let the next one be made."""
        end = self._log.end
        self._allocate_at = end - self._log.file_bytes // 2
        if (
            self._settings.preallocate
            and self._log.bases
            and self._allocating is None
            and self._positions.written > self._allocate_at
        ):
            self._allocating = end
            path = self._log.directory / file_name(end)
            self._background.submit(AllocateJob(path, end, self._log.file_bytes, self._root))

    def make_file(self, base: int) -> None:
        """Make the log file at `base` now; one that is being made is waited for. Raises OSError."""
        if self._allocating is not None:
            self.finish()
        path = self._log.directory / file_name(base)
        if not path.exists():
            allocate_file(path, self._log.file_bytes, self._root)

    def finish(self) -> None:
        """Wait for what is under way in the background."""
        self._background.finish()
        self._collect()

    def _collect(self) -> None:
        for job, error in self._background.collect():
            if isinstance(job, AllocateJob):
                self._allocating = None
                if error is None:
                    self._log.add_file(job.base)
                    self._log.directory_is_dirty = False
                else:
                    # Tried again when the file is needed; then the sender is told.
                    _log.warning("allocate_failed", base=job.base, error=str(error))
                    self._allocate_at = self._log.end - self._log.file_bytes // 4
            elif isinstance(job, CheckpointJob):
                self._checkpoint_is_running = False
                if error is None:
                    self._noted_position = job.summary.position
                else:
                    _log.warning("checkpoint_failed", error=str(error))

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def _checkpoint_job(self) -> CheckpointJob:
        parts = self._parts
        paths = [path for queue in parts.queues for path in queue.take_dirty_paths()]
        directories = [parts.queues.root]
        if parts.index is not None:
            paths += parts.index.take_dirty_paths()
            directories.append(parts.index.directory)
        checkpoint = parts.checkpoint
        checkpoint.logics_msg_timestamp = self._dispatched_timestamp
        checkpoint.index_msg_timestamp = parts.index.end_timestamp if parts.index is not None else 0
        checkpoint.confirm_physical_offset = max(self._last_record, 0)
        summary = DerivedSummary(
            self._store_id,
            self._positions.dispatched,
            self._last_record,
            self._positions.min,
            {(queue.topic, queue.queue_id): queue.note() for queue in parts.queues if queue.next_offset},
            parts.index.notes() if parts.index is not None else None,
        )
        return CheckpointJob(
            paths, directories, self._root / CHECKPOINT, checkpoint, summary_path(self._root), summary
        )

    def checkpoint_now(self) -> None:
        """Make everything derived durable and note it, on this thread. Raises OSError."""
        self.finish()
        if self._last_record >= self._positions.dispatched:
            self._last_record = -1
        job = self._checkpoint_job()
        job.run()
        self._noted_position = job.summary.position

    def end_in_order(self) -> None:
        """The last notes of a store whose log is flushed and dispatched. Raises OSError."""
        if self._log.bases:
            self._log.remove_unused_files()
            sync_directory(self._log.directory)
        self._parts.checkpoint.physic_msg_timestamp = self._dispatched_timestamp
        self.checkpoint_now()

"""Checkpoints: sync derived files to disk and record their state for the next start.

    idle ──(due, or requested)──→ snapshots of 100 queues per turn ──→ a job syncs and writes ──→ idle
                                                                       └──(sync failed)──→ no more checkpoints

Derived files are consume queues and index. A checkpoint is a lower bound of their contents. Its position is
the offset up to which the log was dispatched when the checkpoint began; the snapshots of queues are taken
later and may contain more records, but never fewer.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from store.commitlog.positions import Callback
from store.common.background import Lane
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.disk.files import explain, replace_file, sync_directory, sync_files
from store.dispatch.dispatcher import DispatchStep
from store.dispatch.saved_sink import SINKS
from store.recovery.opening import CHECKPOINT, Recovered, StoreParts
from store.recovery.summary import DerivedSummary, QueueSnapshots, summary_path
from store.store_errors import StoreError
from store.store_settings import StoreSettings

_log = get_logger(__name__)

_QUEUES_PER_TURN = 100  # about a millisecond
# A checkpoint of tens of thousands of queues takes seconds. To limit its cost, the pause after it is ten
# times as long as the checkpoint took, up to the maximum.
_PAUSE_FACTOR = 10
_PAUSE_MAX_NS = 15_000_000_000


class CheckpointJob:
    """Background job that syncs derived files to disk and then writes the checkpoint and summary files."""

    def __init__(
        self,
        paths: Sequence[str],
        directories: Sequence[Path],
        checkpoint: tuple[Path, bytes],
        summary_path: Path,
        summary: Callable[[], bytes],
        sinks: Sequence[tuple[Path, bytes]],
        position: int,
    ) -> None:
        """Create the job.

        Args:
            paths: The derived files to sync.
            directories: The directories to sync.
            checkpoint: Path and content of the checkpoint file.
            summary_path: The path of the file with the derived summary.
            summary: Returns the content of that file.
            sinks: The files of saved sinks, and their content.
            position: All records before this CommitLog offset were dispatched when the checkpoint began.
        """
        self._paths = paths
        self._directories = directories
        self._checkpoint = checkpoint
        self._summary_path = summary_path
        self._summary = summary
        self._sinks = sinks
        self.position = position
        self.is_synced = False

    def run(self) -> None:
        """Sync and write all files of the checkpoint. Raises OSError."""
        sync_files(self._paths, self._summary_path.parent)
        for directory in self._directories:
            if directory.is_dir():
                sync_directory(directory)
        self.is_synced = True
        replace_file(*self._checkpoint)
        replace_file(self._summary_path, self._summary())
        # Last: a state after the end of the summary would be derived again.
        for path, content in self._sinks:
            replace_file(path, content)


class Checkpoints:
    """The checkpoints of one store. Used only on the store's thread."""

    def __init__(
        self,
        root: Path,
        settings: StoreSettings,
        store_id: str,
        clock: Clock,
        parts: StoreParts,
        recovered: Recovered,
        lane: Lane,
    ) -> None:
        self._root = root
        self._store_id = store_id
        self._settings = settings
        self._clock = clock
        self._parts = parts
        self._lane = lane
        self._last = recovered.last
        self._checkpoint = recovered.checkpoint
        self._holes = recovered.holes
        self._checkpoint_position = -1
        self._snapshots = QueueSnapshots(parts.queues)
        self._draft: DerivedSummary | None = None  # the summary, while snapshots are being taken
        self._sinks: Sequence[tuple[Path, bytes]] = ()  # files of saved sinks, when it began
        self._began_ns: int | None = None  # when the checkpoint under way began
        self._due_ns = clock.monotonic_ns() + self._interval_ns
        self._sync_failed = False  # derived files could not be made durable
        self._next_callbacks: list[Callback] = []  # callbacks for the next checkpoint
        self._callbacks: list[Callback] = []  # callbacks for the checkpoint under way

    @property
    def _interval_ns(self) -> int:
        return self._settings.checkpoint_interval_ms * NS_PER_MS

    @property
    def has_more_snapshots(self) -> bool:
        """True if a checkpoint that a caller requested needs further turns to take snapshots."""
        return self._draft is not None and bool(self._callbacks or self._next_callbacks)

    @property
    def is_under_way(self) -> bool:
        """True if a checkpoint takes snapshots, or was requested and has not begun."""
        return self._draft is not None or bool(self._next_callbacks)

    @property
    def dispatched_timestamp(self) -> int:
        """storeTimestamp of the last dispatched record, in milliseconds."""
        return self._last.timestamp

    def mark_changed(self) -> None:
        """Record that derived files were changed without a dispatch.

        The next checkpoint is then not skipped.
        """
        self._checkpoint_position = -1

    def log_flushed(self, timestamp_ms: int) -> None:
        """Record that the CommitLog is flushed up to a record with the storeTimestamp `timestamp_ms`."""
        self._checkpoint = replace(self._checkpoint, physic_msg_timestamp=timestamp_ms)

    def add_step(self, step: DispatchStep) -> None:
        """Record the result of a dispatch step that all sinks have completed."""
        if step.last_record >= 0:
            self._last = step

    def on_next_checkpoint(self, callback: Callback) -> None:
        """Request a checkpoint. `callback` is called, during a later turn, when it is durable or has failed.

        The requested checkpoint begins after this call, even if another one is under way.
        """
        if self._sync_failed:
            callback(self._checkpoint_error(self._sync_error()))
        else:
            self._next_callbacks.append(callback)

    def fail(self, error: StoreError) -> None:
        """Call the callbacks of all callers that wait for a checkpoint with this error."""
        callbacks, self._callbacks, self._next_callbacks = self._callbacks + self._next_callbacks, [], []
        for callback in callbacks:
            callback(error)

    def turn(self) -> None:
        """Begin a checkpoint if one is due, or take the next snapshots of the current one.

        Called by every `step` of the store.
        """
        if self._draft is not None:
            self._resume_snapshots()
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns or self._next_callbacks:
            self._due_ns = now_ns + self._interval_ns
            dispatched = self._parts.positions.dispatched
            has_changes = dispatched != self._checkpoint_position or self._snapshots.has_unsettled
            if (has_changes or self._next_callbacks) and self._began_ns is None and not self._sync_failed:
                self._began_ns = now_ns
                self._begin_checkpoint()
                self._resume_snapshots()

    def finish(self) -> None:
        """Wait for the checkpoint job under way, if any."""
        self._lane.finish()

    def checkpoint_now(self) -> None:
        """Make a checkpoint on this thread and wait for it. Raises OSError."""
        self.finish()
        if self._sync_failed:
            raise self._sync_error()
        if self._last.last_record >= self._parts.positions.dispatched:
            self._last = self._last._replace(last_record=-1)
        self._begin_checkpoint()
        self._snapshots.finish()
        job = self._job()
        self._began_ns = None
        job.run()
        self._checkpoint_position = self._parts.positions.checkpointed = job.position
        self._call_back(None)

    def _begin_checkpoint(self) -> None:
        """Begin a checkpoint.

        The dispatched position is read before the snapshots are taken, because it must not include records
        that a snapshot lacks.
        """
        self._callbacks, self._next_callbacks = self._callbacks + self._next_callbacks, []
        self._snapshots.begin()
        log_min = self._parts.positions.min
        found = [(self._root / SINKS / each.name, each.saved(log_min)) for each in self._parts.saved_sinks]
        self._sinks = [(path, content) for path, content in found if content is not None]
        positions = self._parts.positions
        self._draft = DerivedSummary(
            self._store_id,
            positions.dispatched,
            self._last.last_record,
            positions.min,
            {},
            None,
            is_replicated=positions.is_replicated,
        )

    def _resume_snapshots(self) -> None:
        if self._snapshots.resume(_QUEUES_PER_TURN):
            job = self._job()
            self._lane.submit(job.run, partial(self._on_job_done, job))

    def _job(self) -> CheckpointJob:
        parts, draft = self._parts, self._draft
        assert draft is not None
        self._draft = None
        paths, self._snapshots.dirty_paths = self._snapshots.dirty_paths, []
        directories = [parts.queues.root]
        if parts.index is not None:
            paths += parts.index.take_dirty_paths()
            directories.append(parts.index.directory)
            draft = replace(draft, index_files=parts.index.snapshots())
        draft = replace(draft, holes=tuple(self._holes.all))
        checkpoint = replace(
            self._checkpoint,
            logics_msg_timestamp=self._last.timestamp,
            index_msg_timestamp=parts.index.end_timestamp if parts.index is not None else 0,
            confirm_physical_offset=max(self._last.last_record, 0),
        )
        return CheckpointJob(
            paths,
            directories,
            (self._root / CHECKPOINT, checkpoint.encode()),
            summary_path(self._root),
            partial(self._snapshots.encode, draft),
            self._sinks,
            draft.position,
        )

    def _on_job_done(self, job: CheckpointJob, error: Exception | None) -> None:
        now_ns = self._clock.monotonic_ns()
        took_ns = now_ns - self._began_ns if self._began_ns is not None else 0
        self._began_ns = None
        self._due_ns = max(self._due_ns, now_ns + min(_PAUSE_FACTOR * took_ns, _PAUSE_MAX_NS))
        if error is None:
            self._checkpoint_position = self._parts.positions.checkpointed = job.position
        else:
            # After a failed sync, pages that look clean may be lost: keep the last checkpoint.
            self._sync_failed = not job.is_synced
            _log.warning("checkpoint_failed", error=str(error), is_final=self._sync_failed)
        self._call_back(error)
        if self._sync_failed:
            self.fail(self._checkpoint_error(self._sync_error()))

    def _call_back(self, error: Exception | None) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(None if error is None else self._checkpoint_error(error))

    def _checkpoint_error(self, error: Exception) -> StoreError:
        reason = explain(error) if isinstance(error, OSError) else repr(error)
        return StoreError(f"the checkpoint failed, so the deletion is not durable: {reason}", self._root)

    def _sync_error(self) -> OSError:
        message = "derived files could not be made durable: restart the broker to recover"
        return OSError(errno.EIO, message, str(self._root))

"""What a store does beside appending and reading: files ahead of need, topics that go, and checkpoints.

Disk waits run in the background.
"""

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from store.clock import NS_PER_MS, Clock
from store.commitlog.allocate import AllocateMappedFileService
from store.commitlog.positions import Callback
from store.disk.background import Background, CheckpointJob
from store.disk.files import explain, sync_directory
from store.disk.retired import RemoveTreeJob
from store.disk.touch_ahead import TouchAhead, TouchJob
from store.dispatch.dispatcher import Step
from store.index.index_ahead import IndexFileAhead, IndexFileJob
from store.logs import get_logger
from store.recovery.opening import CHECKPOINT, StoreParts
from store.recovery.summary import DerivedSummary, QueueNotes, summary_path
from store.store_errors import StoreError
from store.store_settings import StoreSettings

_log = get_logger(__name__)

_QUEUES_A_TURN = 100  # about a millisecond
# To note and sync tens of thousands of queues takes seconds: ten times as long is none then, within a bound.
_PAUSES = 10
_PAUSE_MAX_NS = 15_000_000_000
_REMOVED = "removed-"


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
        self._removals = Background()  # 20,000 queues may take the disk a minute: checkpoints go on meanwhile
        self._is_closing = False
        self.allocator = AllocateMappedFileService(parts.log, clock, settings)
        self._index_ahead = IndexFileAhead(root, parts.index, self._background.submit, clock, settings)
        self._touches = Background()  # a checkpoint may take seconds, and the writer does not wait for it
        self._log_touches = TouchAhead(self._touches, parts.positions.written)
        self._index_touches = TouchAhead(self._touches, 0)
        if parts.index is not None and (file := parts.index.last) is not None:
            # After a start all of these are on the disk, and the first dispatch looks at any of them.
            self._touches.submit(TouchJob(str(file.path), 0, file.slots_end))
        self._last_record = parts.tail.last_record
        self._dispatched_timestamp = parts.tail.last_timestamp
        self._noted_position = -1
        self._notes = QueueNotes(parts.queues)
        self._noting: DerivedSummary | None = None  # what a checkpoint says, while queues are being noted
        self._is_checkpointing = False
        self._checkpoint_began_ns = 0
        self._has_lost = False  # derived files could not be made durable
        self._wanting: list[Callback] = []  # to be told of the next checkpoint that is begun …
        self._serving: list[Callback] = []  # … and of the one under way
        self._checkpoint_due_ns = clock.monotonic_ns() + settings.checkpoint_interval_ms * NS_PER_MS
        for left in root.glob(f"{_REMOVED}*"):
            self._removals.submit(self._removal(left))

    @property
    def has_more_to_note(self) -> bool:
        """Whether the next turns bring somebody nearer to what is waited for."""
        return self._noting is not None and bool(self._serving or self._wanting)

    def on_work_ended(self, callback: Callable[[], None]) -> None:
        """From now on call this, on a thread of ours, when there is something to take in a turn."""
        self._background.on_ended = self._removals.on_ended = callback

    def checkpoint_soon(self) -> None:
        """Something derived has changed beside dispatch: the next checkpoint is not left out."""
        self._noted_position = -1

    def note(self, step: Step) -> None:
        """A dispatch step has been done."""
        if step.last_record >= 0:
            self._last_record = step.last_record
            self._dispatched_timestamp = step.timestamp
        self._index_ahead.look()
        if self._parts.index is not None and (file := self._parts.index.last) is not None:
            self._index_touches.look(str(file.path), 0, file.size_bytes, file.written_bytes)

    def turn(self) -> None:
        """Once per `advance`: take what has ended, start what is due."""
        if self._background.has_ended_jobs or self._removals.has_ended_jobs:
            self._collect()
        self.allocator.turn()
        if self._positions.written >= self._log_touches.look_at:
            file = self._log.file_at(self._positions.written - 1)
            self._log_touches.look(file.name, file.base, file.size_bytes, self._positions.written)
        if self._noting is not None:
            self._go_on_noting(_QUEUES_A_TURN)
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._checkpoint_due_ns or self._wanting:
            self._checkpoint_due_ns = now_ns + self._settings.checkpoint_interval_ms * NS_PER_MS
            has_news = self._positions.dispatched != self._noted_position or self._notes.has_unsettled
            if (has_news or self._wanting) and not self._is_checkpointing and not self._has_lost:
                self._is_checkpointing = True
                self._checkpoint_began_ns = now_ns
                self._begin_noting()
                self._go_on_noting(_QUEUES_A_TURN)

    def take_out_topic(self, topic: str) -> tuple[int, RemoveTreeJob]:
        """Forget the queues of a topic, in one step: how many, and the job that removes their files.

        Raises OSError.
        """
        paths = (self._root / f"{_REMOVED}{number}" for number in count())
        target = next(path for path in paths if not path.exists())
        return self._parts.queues.take_out_topic(topic, target), self._removal(target)

    def _removal(self, path: Path) -> RemoveTreeJob:
        return RemoveTreeJob(path, lambda: self._is_closing)

    def remove_soon(self, removal: RemoveTreeJob, callback: Callback) -> None:
        """Do it in the background, note in a checkpoint that it is gone, and call back in a turn."""
        if self._has_lost:
            callback(self._cannot_note(self._lost()))
            return
        self._removals.submit(removal)
        self._wanting.append(callback)

    def fail(self, error: StoreError) -> None:
        """Tell those who wait for a checkpoint that none will come."""
        waiting, self._serving, self._wanting = self._serving + self._wanting, [], []
        for callback in waiting:
            callback(error)

    def finish(self) -> None:
        """Wait for what is under way in the background."""
        self.allocator.finish()
        self._background.finish()
        self._collect()

    def close(self) -> None:
        """End all threads. What has not been removed yet the next start removes."""
        self._is_closing = True
        self.allocator.close()
        self.finish()
        self._removals.finish()
        self._touches.finish()
        self._index_ahead.discard()

    def _collect(self) -> None:
        for job, error in self._background.collect():
            if isinstance(job, IndexFileJob):
                self._index_ahead.take(job, error)
            elif isinstance(job, CheckpointJob):
                self._take_checkpoint(job, error)
        for job, error in self._removals.collect():
            if isinstance(job, RemoveTreeJob) and error is not None:
                _log.warning("removed_queues_left", path=str(job.path), error=str(error))

    def _take_checkpoint(self, job: CheckpointJob, error: OSError | None) -> None:
        self._is_checkpointing = False
        now_ns = self._clock.monotonic_ns()
        pause_ns = min(_PAUSES * (now_ns - self._checkpoint_began_ns), _PAUSE_MAX_NS)
        self._checkpoint_due_ns = max(self._checkpoint_due_ns, now_ns + pause_ns)
        if error is None:
            self._noted_position = job.position
        else:
            # After a failed sync pages may be lost that look clean: the last good note stays (law 7).
            self._has_lost = not job.is_synced
            _log.warning("checkpoint_failed", error=str(error), is_final=self._has_lost)
        self._tell(error)
        if self._has_lost:
            self.fail(self._cannot_note(self._lost()))

    def _tell(self, error: OSError | None) -> None:
        serving, self._serving = self._serving, []
        for callback in serving:
            callback(None if error is None else self._cannot_note(error))

    def _cannot_note(self, error: OSError) -> StoreError:
        return StoreError(f"what has gone cannot be noted: {explain(error)}", self._root)

    def _lost(self) -> OSError:
        return OSError(errno.EIO, "derived files could not be made durable: restart", str(self._root))

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def _begin_noting(self) -> None:
        """The position first: what is noted of the queues after that is more than it says, never less."""
        self._serving, self._wanting = self._serving + self._wanting, []
        self._notes.begin()
        self._noting = DerivedSummary(
            self._store_id, self._positions.dispatched, self._last_record, self._positions.min, {}, None
        )

    def _go_on_noting(self, count: int) -> None:
        if self._notes.go_on(count):
            self._background.submit(self._checkpoint_job())

    def _checkpoint_job(self) -> CheckpointJob:
        parts, noting = self._parts, self._noting
        assert noting is not None
        self._noting = None
        paths, self._notes.dirty_paths = self._notes.dirty_paths, []
        directories = [parts.queues.root]
        if parts.index is not None:
            paths += parts.index.take_dirty_paths()
            directories.append(parts.index.directory)
            noting = replace(noting, index_files=parts.index.notes())
        holes = tuple(hole for hole in parts.holes if hole.position >= self._positions.min)
        noting = replace(noting, holes=holes)
        checkpoint = parts.checkpoint
        checkpoint.logics_msg_timestamp = self._dispatched_timestamp
        checkpoint.index_msg_timestamp = parts.index.end_timestamp if parts.index is not None else 0
        checkpoint.confirm_physical_offset = max(self._last_record, 0)
        return CheckpointJob(
            paths,
            directories,
            (self._root / CHECKPOINT, checkpoint.encode()),
            summary_path(self._root),
            partial(self._notes.encode, noting),
            noting.position,
        )

    def checkpoint_now(self) -> None:
        """Make everything derived durable and note it, on this thread. Raises OSError."""
        self.finish()
        if self._has_lost:
            raise self._lost()
        if self._last_record >= self._positions.dispatched:
            self._last_record = -1
        self._begin_noting()
        self._notes.finish()
        job = self._checkpoint_job()
        self._is_checkpointing = False
        job.run()
        self._noted_position = job.position
        self._tell(None)

    def end_in_order(self) -> None:
        """The last notes of a store whose log is flushed and dispatched. Raises OSError."""
        self.allocator.discard()
        self._index_ahead.discard()
        if self._log.bases:
            self._log.remove_unused_files()
            for directory in self._log.dirty_directories:
                sync_directory(directory)
        self._parts.checkpoint.physic_msg_timestamp = self._dispatched_timestamp
        self.checkpoint_now()

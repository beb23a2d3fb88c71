"""Checkpoints: derived files are made durable, and what they hold is noted for the next start.

    idle ──(due, or awaited)──→ noting: 100 queues per turn ──→ a job syncs and writes ──→ idle
                                                                └──(sync failed)──→ lost: no more checkpoints

A checkpoint is a lower bound: it says how far the log was dispatched when noting began, and what is noted of
queues after that is more, never less.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from store.clock import NS_PER_MS, Clock
from store.commitlog.positions import Callback
from store.disk.files import explain, replace_file, sync_directory, sync_files
from store.dispatch.dispatcher import Step
from store.jobs import Lane
from store.logs import get_logger
from store.recovery.opening import CHECKPOINT, StoreParts
from store.recovery.summary import DerivedSummary, QueueSnapshots, summary_path
from store.store_errors import StoreError

_log = get_logger(__name__)

_QUEUES_A_TURN = 100  # about a millisecond
# To note and sync tens of thousands of queues takes seconds: then the pause is ten times as long, bounded.
_PAUSES = 10
_PAUSE_MAX_NS = 15_000_000_000


class CheckpointJob:
    """Make derived files durable, then say so in the checkpoint and the summary."""

    def __init__(
        self,
        paths: Sequence[str],
        directories: Sequence[Path],
        checkpoint: tuple[Path, bytes],
        summary_path: Path,
        summary: Callable[[], bytes],
        position: int,
    ) -> None:
        """`checkpoint` is a path and its content; `summary` gives the content of the file at `summary_path`,
        by which everything before `position` was dispatched.
        """
        self._paths = paths
        self._directories = directories
        self._checkpoint = checkpoint
        self._summary_path = summary_path
        self._summary = summary
        self.position = position
        self.is_synced = False

    def run(self) -> None:
        """Do it. Raises OSError."""
        sync_files(self._paths, self._summary_path.parent)
        for directory in self._directories:
            if directory.is_dir():
                sync_directory(directory)
        self.is_synced = True
        replace_file(*self._checkpoint)
        replace_file(self._summary_path, self._summary())


class Checkpoints:
    """The checkpoints of one store. Belongs to the store's thread."""

    def __init__(
        self, root: Path, store_id: str, interval_ms: int, clock: Clock, parts: StoreParts, lane: Lane
    ) -> None:
        self._root = root
        self._store_id = store_id
        self._interval_ns = interval_ms * NS_PER_MS
        self._clock = clock
        self._parts = parts
        self._lane = lane
        self._last = Step(-1, parts.tail.last_record, parts.tail.last_timestamp)
        self._noted_position = -1
        self._notes = QueueSnapshots(parts.queues)
        self._noting: DerivedSummary | None = None  # what the checkpoint says, while queues are being noted
        self._began_ns: int | None = None  # of the checkpoint under way
        self._due_ns = clock.monotonic_ns() + self._interval_ns
        self._has_lost = False  # derived files could not be made durable
        self._awaiting: list[Callback] = []  # the end of the next checkpoint that is begun …
        self._serving: list[Callback] = []  # … and of the one under way

    @property
    def has_more_to_note(self) -> bool:
        """Whether the next turns bring an awaited checkpoint nearer."""
        return self._noting is not None and bool(self._serving or self._awaiting)

    @property
    def dispatched_timestamp(self) -> int:
        """The storeTimestamp of the last dispatched record."""
        return self._last.timestamp

    def mark_changed(self) -> None:
        """Something derived has changed beside dispatch: the next checkpoint is not left out."""
        self._noted_position = -1

    def note(self, step: Step) -> None:
        """A dispatch step has been done."""
        if step.last_record >= 0:
            self._last = step

    def await_next(self, callback: Callback) -> None:
        """Call back in a turn when a checkpoint that is begun after this is durable, or cannot be."""
        if self._has_lost:
            callback(self._cannot_note(self._lost()))
        else:
            self._awaiting.append(callback)

    def fail(self, error: StoreError) -> None:
        """Pass this error to all who wait for a checkpoint."""
        waiting, self._serving, self._awaiting = self._serving + self._awaiting, [], []
        for callback in waiting:
            callback(error)

    def turn(self) -> None:
        """Once per `advance`: begin what is due, note some queues."""
        if self._noting is not None:
            self._resume_noting()
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns or self._awaiting:
            self._due_ns = now_ns + self._interval_ns
            has_news = self._parts.positions.dispatched != self._noted_position or self._notes.has_unsettled
            if (has_news or self._awaiting) and self._began_ns is None and not self._has_lost:
                self._began_ns = now_ns
                self._begin_noting()
                self._resume_noting()

    def finish(self) -> None:
        """Wait for the checkpoint under way."""
        self._lane.finish()

    def checkpoint_now(self) -> None:
        """Make everything derived durable and note it, on this thread. Raises OSError."""
        self.finish()
        if self._has_lost:
            raise self._lost()
        if self._last.last_record >= self._parts.positions.dispatched:
            self._last = self._last._replace(last_record=-1)
        self._begin_noting()
        self._notes.finish()
        job = self._job()
        self._began_ns = None
        job.run()
        self._noted_position = job.position
        self._call_back(None)

    def _begin_noting(self) -> None:
        """The position first: what is noted of the queues after that is more than it says, never less."""
        self._serving, self._awaiting = self._serving + self._awaiting, []
        self._notes.begin()
        positions = self._parts.positions
        self._noting = DerivedSummary(
            self._store_id, positions.dispatched, self._last.last_record, positions.min, {}, None
        )

    def _resume_noting(self) -> None:
        if self._notes.resume(_QUEUES_A_TURN):
            job = self._job()
            self._lane.submit(job.run, partial(self._take, job))

    def _job(self) -> CheckpointJob:
        parts, noting = self._parts, self._noting
        assert noting is not None
        self._noting = None
        paths, self._notes.dirty_paths = self._notes.dirty_paths, []
        directories = [parts.queues.root]
        if parts.index is not None:
            paths += parts.index.take_dirty_paths()
            directories.append(parts.index.directory)
            noting = replace(noting, index_files=parts.index.notes())
        holes = tuple(hole for hole in parts.holes if hole.position >= parts.positions.min)
        noting = replace(noting, holes=holes)
        checkpoint = parts.checkpoint
        checkpoint.logics_msg_timestamp = self._last.timestamp
        checkpoint.index_msg_timestamp = parts.index.end_timestamp if parts.index is not None else 0
        checkpoint.confirm_physical_offset = max(self._last.last_record, 0)
        return CheckpointJob(
            paths,
            directories,
            (self._root / CHECKPOINT, checkpoint.encode()),
            summary_path(self._root),
            partial(self._notes.encode, noting),
            noting.position,
        )

    def _take(self, job: CheckpointJob, error: Exception | None) -> None:
        now_ns = self._clock.monotonic_ns()
        took_ns = now_ns - self._began_ns if self._began_ns is not None else 0
        self._began_ns = None
        self._due_ns = max(self._due_ns, now_ns + min(_PAUSES * took_ns, _PAUSE_MAX_NS))
        if error is None:
            self._noted_position = job.position
        else:
            # After a failed sync pages may be lost that look clean: the last good note stays (law 7).
            self._has_lost = not job.is_synced
            _log.warning("checkpoint_failed", error=str(error), is_final=self._has_lost)
        self._call_back(error)
        if self._has_lost:
            self.fail(self._cannot_note(self._lost()))

    def _call_back(self, error: Exception | None) -> None:
        serving, self._serving = self._serving, []
        for callback in serving:
            callback(None if error is None else self._cannot_note(error))

    def _cannot_note(self, error: Exception) -> StoreError:
        reason = explain(error) if isinstance(error, OSError) else repr(error)
        return StoreError(f"what has gone cannot be noted: {reason}", self._root)

    def _lost(self) -> OSError:
        return OSError(errno.EIO, "derived files could not be made durable: restart", str(self._root))

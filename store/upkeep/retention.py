"""Retention: deletes old log files and the derived data of their records (docs/store-format.md#retention).

A log file is expired `file_reserved_time_h` hours after its last change, whether its messages have been
consumed or not. Expired files are deleted at the hours of `delete_when_h`, while the disk is fuller than
`disk_max_used_percent`, and on request. If the disk is fuller than `disk_force_clean_percent`, the oldest
files are deleted at any age, as many as are needed. A file is never deleted before a checkpoint
covers it, and the last file is always kept. Expired files that others still need (`keep_from`) are kept,
until the disk is fuller than `disk_force_clean_percent`.

The store's thread decides what to delete. Checking the disk and deleting files happen in the background.
Queues are corrected a few per turn, and each queue is corrected before it is read.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.consumequeue.consume_queue import ConsumeQueue
from store.disk.disk_use import DiskLevels, DiskProbe, DiskState, Pressure
from store.disk.retired import RemoveJob, RetiredFile, SurveyJob
from store.recovery.opening import StoreParts
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.upkeep.checkpoints import Checkpoints
from store.upkeep.stale_queues import StaleQueues
from store.writing.send_gate import DISK, SendGate

_log = get_logger(__name__)

_MS_PER_H = 3_600_000
_MANUAL_ROUNDS = 20  # rounds for which a manual request stays active, as in RocketMQ


class Need(NamedTuple):
    """The log is needed from CommitLog offset `offset` on; `effect` is what happens if it is deleted."""

    offset: int
    needed_by: str
    effect: str


class Round(NamedTuple):
    """The state of the store and its disks from which one cleaning round decides which files to delete.

    `changed_ms` maps the CommitLog offset at which each removable log file begins to the file's modification
    time, oldest file first. `excess_bytes` is how much the disk usage exceeds `disk_force_clean_percent`.
    Files that end after `needed_offset` are only deleted by force; None: no file is needed.
    """

    now_ms: int
    pressure: Pressure
    excess_bytes: int
    changed_ms: dict[int, int]
    is_requested: bool
    needed_offset: int | None = None


def is_time_to_delete(delete_when_h: str, now_ms: int) -> bool:
    """Return True if `delete_when_h` (for example "04;16") lists the local hour of `now_ms`.

    The format is that of RocketMQ's UtilAll.isItTimeToDo.
    """
    hour = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().hour
    return any(int(part) == hour for part in delete_when_h.split(";") if part.strip())


def files_to_delete(settings: StoreSettings, found: Round) -> list[int]:
    """Choose the log files to delete in this cleaning round: always the oldest ones, without gaps.

    Returns the CommitLog offset at which each of these files begins.
    """
    by_force = settings.force_clean_enabled and found.pressure >= Pressure.FORCE
    if not (
        by_force
        or found.is_requested
        or found.pressure >= Pressure.CLEAN
        or is_time_to_delete(settings.delete_when_h, found.now_ms)
    ):
        return []
    forced = max(-(-found.excess_bytes // settings.commit_log_file_bytes), 1) if by_force else 0
    expired_before_ms = found.now_ms - settings.file_reserved_time_h * _MS_PER_H
    needed_offset = math.inf if found.needed_offset is None else found.needed_offset
    chosen: list[int] = []
    for base, changed_ms in found.changed_ms.items():
        is_needed = base + settings.commit_log_file_bytes > needed_offset
        if (changed_ms > expired_before_ms or is_needed) and len(chosen) >= forced:
            break
        chosen.append(base)
    return chosen[: settings.delete_file_batch_max]


class Retention:
    """The retention of one store; the store's `step` calls `turn`."""

    def __init__(
        self,
        settings: StoreSettings,
        clock: Clock,
        parts: StoreParts,
        probe: DiskProbe,
        checkpoints: Checkpoints,
        gate: SendGate,
    ) -> None:
        """Create the retention of a store; `probe` returns the usage of the disk that contains a path."""
        self._gate = gate
        self._settings = settings
        self._clock = clock
        self._parts = parts
        self._probe = probe
        self._checkpoints = checkpoints
        self._waits_for_checkpoint = False
        self._lane = parts.background.lane("store-retention")
        self._is_surveying = False
        self._due_ns = clock.monotonic_ns() + settings.clean_interval_ms * NS_PER_MS
        self._requested_rounds = 0
        self._delete_to = 0
        self._chosen: list[int] = []
        self._drop_due_ns = 0
        self._in_use: list[RetiredFile] = []
        self._needs: dict[str, Callable[[], Need | None]] = {}
        self._kept_for = ""
        self.needed_deleted = 0
        """Deleted log files that were still needed; the disk was too full to keep them."""
        self.stale_queues = StaleQueues(parts, self._lane, clock, self._remove_dead_files)

    # ---- on request ----------------------------------------------------------------------------------------

    def delete_expired(self) -> None:
        """Delete expired log files now, at any hour (RocketMQ's deleteExpiredCommitLog)."""
        self._requested_rounds = _MANUAL_ROUNDS
        self._due_ns = self._clock.monotonic_ns()

    def keep_from(self, name: str, need: Callable[[], Need | None]) -> None:
        """Keep the log that others need, unless the disk is fuller than `disk_force_clean_percent`.

        `need` is called before files are deleted, and returns None if nothing is needed. It replaces the
        one of the same name.
        """
        self._needs[name] = need

    def delete_before(self, offset: int) -> None:
        """Delete the log files before CommitLog offset `offset` at any age, if they are dispatched."""
        self._delete_to = offset
        self._chosen = self._ordered_bases()

    def _ordered_bases(self) -> list[int]:
        """Return the files that `delete_before` ordered to delete, and that still exist."""
        file_bytes = self._parts.log.file_bytes
        return [base for base in self._removable_bases() if base + file_bytes <= self._delete_to]

    def clean_expired_queues(self, is_kept: Callable[[str], bool], limit: int) -> list[tuple[str, int]]:
        """Delete up to `limit` queues whose messages are all deleted, and return them as (topic, queue id).

        Topics for which `is_kept` returns True are skipped. If `limit` queues are returned, there may be
        more. A deleted queue begins at offset 0 again, as in RocketMQ (cleanExpiredCQ). Raises OSError.
        """
        first = self._parts.positions.min
        expired = (
            queue
            for queue in self._parts.queues
            if 0 < queue.next_offset == queue.assigned_offset
            and queue.end_physical_offset <= first
            and not is_kept(queue.topic)
        )
        removed = list(islice(expired, limit))
        self._parts.queues.reset(*removed)
        for queue in removed:
            self.stale_queues.forget(queue)
            _log.info(
                "queue_cleaned", topic=queue.topic, queue_id=queue.queue_id, next_offset=queue.next_offset
            )
        if removed:
            self._checkpoints.mark_changed()
        return [(queue.topic, queue.queue_id) for queue in removed]

    def ended_queues(self) -> dict[str, list[tuple[int, int]]]:
        """Return queue id and end of each queue of which the log has no record, by topic."""
        first, found = self._parts.positions.min, dict[str, list[tuple[int, int]]]()
        for queue in self._parts.queues:
            if queue.next_offset and queue.end_physical_offset <= first:
                found.setdefault(queue.topic, []).append((queue.queue_id, queue.next_offset))
        return found

    def reserve_ends(self, ends: Mapping[str, Iterable[tuple[int, int]]], position: int) -> bool:
        """Let queues end where those of another replica do of which its log had no record (`ended_queues`).

        `position` is the CommitLog offset that the other replica had dispatched then. Returns False, and does
        nothing, if this store has not dispatched it, or is writing units. Raises OSError.
        """
        if self._parts.positions.dispatched < position or self._parts.queue_sink.is_under_way:
            return False
        for topic, queues in ends.items():
            for queue_id, offset in queues:
                self._parts.queues.reserve_before(topic, queue_id, offset, position)
        self._checkpoints.mark_changed()
        return True

    @property
    def is_under_way(self) -> bool:
        """True if files are to be deleted, or queues to be corrected, in the next turns."""
        return bool(self._chosen) or self.stale_queues.has_any

    # ---- turns ---------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Start the tasks that are due, and correct the first offsets of some queues.

        Called by every `step` of the store.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns and not self._is_surveying:
            self._due_ns = now_ns + self._settings.clean_interval_ms * NS_PER_MS
            self._start_survey()
        if self._chosen and now_ns >= self._drop_due_ns and self._is_checkpointed(self._chosen[0]):
            self._drop_due_ns = now_ns + self._settings.delete_files_interval_ms * NS_PER_MS
            self._drop(self._chosen.pop(0))
        if self.stale_queues.has_any:
            self.stale_queues.correct_some()

    def _is_checkpointed(self, base: int) -> bool:
        """Return True if a checkpoint covers the log file at `base`; else request one."""
        if base + self._parts.log.file_bytes <= self._parts.positions.checkpointed:
            return True
        if not self._waits_for_checkpoint:
            self._waits_for_checkpoint = True
            self._checkpoints.on_next_checkpoint(self._on_checkpoint)
        return False

    def _on_checkpoint(self, error: StoreError | None) -> None:
        self._waits_for_checkpoint = False
        if error is not None:
            self._chosen = []  # the next round chooses again

    def finish(self) -> None:
        """Wait for background work to complete."""
        self._lane.finish()

    def _start_survey(self) -> None:
        if self._in_use:
            self._remove(self._in_use)
            self._in_use = []
        files = [(base, self._parts.log.path_of(base)) for base in self._removable_bases()]
        # Check one file more than the limit, to see whether it has expired too.
        files = files[: self._settings.delete_file_batch_max + 1]
        self._is_surveying = True
        job = SurveyJob(self._parts.log.directories, self._parts.queues.root, files, self._probe)
        self._lane.submit(job.run, partial(self._take_survey, job))

    def _removable_bases(self) -> list[int]:
        log, positions = self._parts.log, self._parts.positions
        done = min(positions.flushed, positions.dispatched)
        last = log.base_of(max(positions.written - 1, 0))
        return [base for base in log.bases if base < last and base + log.file_bytes <= done]

    def _take_survey(self, job: SurveyJob, error: Exception | None) -> None:
        self._is_surveying = False
        if job.state is not None and error is None:
            self._choose_files(job.state, job.changed_ms)
        else:
            _log.warning("disk_check_failed", error=str(error))

    def _remove(self, files: Sequence[RetiredFile]) -> None:
        job = RemoveJob(files)
        self._lane.submit(job.run, partial(self._on_removed, job))

    def _on_removed(self, job: RemoveJob, error: Exception | None) -> None:
        """Keep the files that could not be deleted for the next disk check, and log the failure once."""
        if error is not None and not all(file.is_failure_logged for file in job.left):
            _log.warning("file_removal_failed", path=str(job.left[0].path), error=str(error))
        for file in job.left:
            file.is_failure_logged = error is not None
        self._in_use += job.left

    def _choose_files(self, state: DiskState, changed_ms: dict[int, int]) -> None:
        settings = self._settings
        levels = DiskLevels(
            settings.disk_max_used_percent,
            settings.disk_force_clean_percent,
            settings.disk_refuse_writes_percent,
        )
        pressure = state.pressure(levels)
        self._set_refusal(pressure, state, levels)
        if pressure >= Pressure.FORCE and self._will_free_space_soon():
            pressure = Pressure.CLEAN
        is_requested = self._requested_rounds > 0
        self._requested_rounds = max(self._requested_rounds - 1, 0)
        excess_bytes = levels.excess_bytes(state.log[1])
        found = Round(self._clock.wall_ms(), pressure, excess_bytes, changed_ms, is_requested)
        self._chosen = self._ordered_bases() or self._without_needed(found)

    def _without_needed(self, found: Round) -> list[int]:
        """Return the files to delete: needed ones only if the disk is too full to wait."""
        expired = files_to_delete(self._settings, found)
        need = self._first_need() if expired else None
        if need is None:
            self._kept_for = ""
            return expired
        chosen = files_to_delete(self._settings, found._replace(needed_offset=need.offset))
        kept = len(expired) - len(chosen)
        if kept and need.needed_by != self._kept_for:
            _log.warning(f"log_files_kept_for_{need.needed_by}", offset=need.offset, files=kept)
        self._kept_for = need.needed_by if kept else ""
        return chosen

    def _first_need(self) -> Need | None:
        needs = [each for find in self._needs.values() if (each := find()) is not None]
        return min(needs, default=None)

    def _will_free_space_soon(self) -> bool:
        """Return True if disk space will soon be freed, because deleted files are only still being read.

        In that case no unexpired files are deleted.
        """
        timeout_ns = self._settings.file_release_timeout_ms * NS_PER_MS
        now_ns = self._clock.monotonic_ns()
        return any(now_ns - file.since_ns < timeout_ns for file in self._in_use)

    def _set_refusal(self, pressure: Pressure, state: DiskState, levels: DiskLevels) -> None:
        if pressure is Pressure.REFUSE:
            if not self._gate.is_closed_by(DISK):
                _log.error(
                    "disk_full",
                    log_disk_percent=state.log[1].percent,
                    consume_queue_disk_percent=state.derived[1].percent,
                )
            self._gate.close(DISK, state.refusal(levels))
        elif pressure < Pressure.FORCE and self._gate.is_closed_by(DISK):
            _log.info(
                "disk_space_recovered",
                log_disk_percent=state.log[1].percent,
                consume_queue_disk_percent=state.derived[1].percent,
            )
            self._gate.open(DISK)

    # ---- deletion ------------------------------------------------------------------------------------------

    def _drop(self, base: int) -> None:
        parts = self._parts
        if not parts.log.bases or base != parts.log.bases[0] or base not in self._removable_bases():
            self._chosen = []  # the log has changed since the choice: the next round chooses again
            return
        need = self._first_need()
        retired = [parts.log.retire_first()]
        parts.positions.min = first = parts.log.bases[0]
        if parts.index is not None:
            retired += [RetiredFile(file.path, file.release) for file in parts.index.take_dead_files(first)]
        _log.info("log_file_deleted", path=str(retired[0].path), min_offset=first)
        if need is not None and need.offset < first:
            self.needed_deleted += 1
            _log.error("needed_log_files_deleted", **need._asdict())
        for file in retired:
            file.since_ns = self._clock.monotonic_ns()
        self._remove(retired)
        self.stale_queues.add_all()
        self._checkpoints.mark_changed()

    # ---- queues --------------------------------------------------------------------------------------------

    @property
    def has_stale_queues(self) -> bool:
        """True if some queues may begin with deleted records.

        The caller must then call `correct` before it reads a queue.
        """
        return self.stale_queues.has_any

    def correct(self, queue: ConsumeQueue) -> None:
        """Correct the first offset of a queue after log files were deleted (see `StaleQueues.correct`)."""
        self.stale_queues.correct(queue)

    def correct_if_resident(self, queue: ConsumeQueue) -> None:
        """Correct the first offset of a queue without disk reads (see `StaleQueues.correct_if_resident`)."""
        self.stale_queues.correct_if_resident(queue)

    def _remove_dead_files(self, paths: Sequence[Path]) -> None:
        self._remove([RetiredFile(path) for path in paths])

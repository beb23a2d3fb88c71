"""Open a store: load its files, truncate them to the valid end of the log, and dispatch missing records."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from store.commitlog.allocate import AllocateMappedFileService
from store.commitlog.commit_log import CommitLog
from store.commitlog.holes import KnownHoles, known_holes
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import CONFIRM_POLICIES, ConfirmPolicy, Positions
from store.common.background import BackgroundWork, Executors, thread_pool
from store.common.clock import Clock
from store.common.logs import get_logger
from store.consumequeue.table import ConsumeQueueTable, LoadedQueue
from store.disk.files import Descriptors
from store.disk.residency import Residency
from store.dispatch.dispatcher import Dispatcher, DispatchStep, Mode
from store.dispatch.queue_sink import ConsumeQueueSink
from store.dispatch.saved_sink import SINKS, SavedSink, drop_lost_states
from store.dispatch.sink import DispatchSink
from store.index.index_file import IndexSnapshot
from store.index.index_service import IndexService
from store.lite.lite_index import LiteIndex
from store.recovery.checkpoint import StoreCheckpoint
from store.recovery.scan_ahead import ScanAhead
from store.recovery.summary import DerivedSummary, read_summary
from store.recovery.tail import Tail, dispatch_start, find_tail, reserve_lost_offsets, scan_start
from store.store_errors import StoreError
from store.store_settings import StoreSettings

_log = get_logger(__name__)

CONSUME_QUEUE = "consumequeue"
INDEX = "index"
CHECKPOINT = "checkpoint"


class Recovered(NamedTuple):
    """Result of recovery.

    `last` is the last dispatched record; the log of a replica may have later ones. `holes` are the damaged
    ranges of the log, `checkpoint` is the checkpoint with the time of the last record of the log, all of
    which is flushed. Dispatch began at the CommitLog offset `dispatched_from`. `was_clean` is False if the
    previous writer was killed.
    """

    tail: Tail
    last: DispatchStep
    holes: KnownHoles
    checkpoint: StoreCheckpoint
    dispatched_from: int
    was_clean: bool

    @property
    def records(self) -> int:
        """Number of records that the search of the log's end has read."""
        return self.tail.records


@dataclass(frozen=True)
class StoreParts:
    """The components of an open store."""

    positions: Positions
    log: CommitLog
    allocator: AllocateMappedFileService
    queues: ConsumeQueueTable
    index: IndexService | None
    sinks: Sequence[DispatchSink]
    queue_sink: ConsumeQueueSink
    dispatcher: Dispatcher
    descriptors: Descriptors
    residency: Residency
    background: BackgroundWork

    @property
    def saved_sinks(self) -> Sequence[SavedSink]:
        """The sinks with a state that outlives the process."""
        return [sink for sink in self.sinks if isinstance(sink, SavedSink)]

    @property
    def lite_index(self) -> LiteIndex | None:
        """The index of lite topics; None if the store was opened without it."""
        return next((sink for sink in self.sinks if isinstance(sink, LiteIndex)), None)

    def rewind(self, root: Path, store_id: str, offset: int) -> None:
        """Drop what the sinks have of records from a CommitLog offset on. Raises OSError, StoreError."""
        for sink in self.sinks:
            sink.rewind(offset)
        drop_lost_states(root, store_id, offset)

    def spare_descriptors(self) -> int:
        """Return how many further descriptors the files of the log and of the queues may need."""
        return self.log.spare_descriptors() + self.descriptors.spare()

    def close(self) -> None:
        """Stop background work and close all files; nothing is written."""
        self.background.close()
        self.log.close()
        self.log.paths.unlock()
        if self.index is not None:
            self.index.close()
        self.descriptors.close()


def open_parts(
    root: Path,
    settings: StoreSettings,
    clock: Clock,
    sinks: Sequence[DispatchSink] = (),
    confirm: ConfirmPolicy | None = None,
    executors: Executors = thread_pool,
    max_open_files: int | None = None,
) -> StoreParts:
    """Create the components of a store, and check the names and sizes of its files.

    Nothing on disk is changed. `sinks` receive dispatched records in addition to index and consume queues.
    `confirm` is the confirm policy; None: that of the setting `flush`. `executors` run its background work.
    `max_open_files` is used instead of that of the settings.
    Raises StoreError for unexpected files and for files that were created with other settings.
    """
    positions = Positions(confirm or CONFIRM_POLICIES[settings.flush])
    residency = Residency(lambda: positions.recovered)
    background = BackgroundWork(executors)
    files = max_open_files or settings.max_open_files
    log, allocator = _open_log(root, settings, clock, positions, residency, background, files)
    descriptors = Descriptors(files)
    queues = ConsumeQueueTable(
        root / CONSUME_QUEUE, settings.consume_queue_file_bytes, descriptors, residency=residency
    )
    queues.check_settings()
    index = (
        IndexService(root / INDEX, settings.index_slots, settings.index_entries) if settings.index else None
    )
    if index is not None:
        index.check_settings()
    queue_sink = ConsumeQueueSink(log, queues, background.lane("store-units"))
    # The queues come last: when a message becomes readable, all other sinks have it.
    sinks = [*([] if index is None else [index]), *sinks, queue_sink]
    dispatcher = Dispatcher(log, sinks, settings.delay_levels_ms(), settings.dispatch_slice_bytes)
    return StoreParts(
        positions,
        log,
        allocator,
        queues,
        index,
        sinks,
        queue_sink,
        dispatcher,
        descriptors,
        residency,
        background,
    )


def _open_log(
    root: Path,
    settings: StoreSettings,
    clock: Clock,
    positions: Positions,
    residency: Residency,
    background: BackgroundWork,
    max_open_files: int,
) -> tuple[CommitLog, AllocateMappedFileService]:
    paths = LogPaths(
        root,
        settings.commit_log_paths,
        settings.read_only_commit_log_paths,
        full_percent=lambda: settings.disk_force_clean_percent,
    )
    lane = background.lane("store-allocate")
    allocator = AllocateMappedFileService(paths, positions, clock, settings, lane)
    log = CommitLog(
        paths,
        settings.commit_log_file_bytes,
        positions,
        max_open_files=max_open_files,
        residency=residency,
        make_file=allocator.take,
    )
    return log, allocator


def _walk_log(
    root: Path,
    settings: StoreSettings,
    parts: StoreParts,
    summary: DerivedSummary | None,
    start: int,
    is_ours: bool,
) -> Tail:
    """Read the log from the record at `start` to its end."""
    confirmed = summary.position if summary is not None else 0
    check_crc = settings.check_crc_on_recover
    with ScanAhead(parts.log, check_crc=check_crc, background=parts.background) as scans:
        tail = find_tail(
            parts.log, start, check_crc=check_crc, is_ours=is_ours, confirmed=confirmed, scans=scans
        )
    if tail.position < confirmed:
        _log.error("log_tail_missing", root=str(root), end=tail.position, expected_end=confirmed)
    return tail


def recover(
    root: Path,
    settings: StoreSettings,
    parts: StoreParts,
    store_id: str,
    *,
    closed_cleanly: bool,
    is_ours: bool,
) -> Recovered:
    """Lock the log's directories, truncate damaged ends, and dispatch records that derived files lack.

    `is_ours` is True if RayMQ wrote this store, so that no old records follow the end of its log. Raises
    StoreError, OSError.
    """
    _prepare_directories(root, parts.log)
    log, queues, index = parts.log, parts.queues, parts.index
    checkpoint = StoreCheckpoint.read(root / CHECKPOINT)
    log_min = log.bases[0] if log.bases else 0
    summary = _usable_summary(root, store_id, log_min)
    start = scan_start(log, summary)
    tail = _walk_log(root, settings, parts, summary, start, is_ours)
    if log.bases:
        log.truncate_to(tail.position)
    if not closed_cleanly:
        _sync(log, min(start, max(tail.position - 1, log_min)), tail.position)
    noted = summary.holes if summary is not None else ()
    holes = KnownHoles(parts.positions, known_holes(noted, tail.holes, start, tail.position))
    parts.positions.set_all(log_min, tail.position)
    end = parts.positions.restore_confirmed(_confirmed_before(log, checkpoint, summary))
    loaded = queues.load(end, summary.queues if summary is not None else {})
    _truncate_after_valid_units(queues, loaded, closed_cleanly=closed_cleanly)
    if index is not None:
        snapshots = summary.index_files if summary is not None and log.bases else None
        _load_index(index, snapshots, log_min, closed_cleanly=closed_cleanly)
    if not log.bases:
        queues.remove_all()
    _load_sinks(root, parts.saved_sinks, store_id, log_min, end)
    for sink in parts.sinks[:-1]:  # the last sink, the queues, was loaded up to `end`
        sink.rewind(end)
    begin = dispatch_start(summary, log_min, end, queues, loaded, parts.sinks)
    parts.positions.dispatched = parts.dispatcher.run(begin.position, end, Mode.RECOVERY)
    if summary is not None and tail.position >= summary.position:
        reserve_lost_offsets(queues, _next_offsets(queues, summary))
    for each in queues:
        each.correct_min_offset(log_min)
    if log.bases or summary is not None or loaded:  # else it is a new store: nothing to report
        _log.info(
            "store_recovered",
            root=str(root),
            closed_cleanly=closed_cleanly,
            scanned_from=start,
            end=tail.position,
            dispatched_from=begin.position,
            dispatched_to=end,
            dispatch_reasons=begin.reasons[:10],
            damaged_bytes=tail.damaged_bytes,
        )
    last = _last_dispatched(tail, summary, checkpoint, parts.positions.dispatched)
    flushed = replace(checkpoint, physic_msg_timestamp=tail.last_timestamp)
    return Recovered(tail, last, holes, flushed, begin.position, closed_cleanly)


def _load_sinks(root: Path, sinks: Sequence[SavedSink], store_id: str, log_min: int, end: int) -> None:
    names = [sink.name for sink in sinks]
    if len(set(names)) < len(names):
        raise StoreError(f"two sinks have one name, so they would share a file: {sorted(names)}", root)
    drop_lost_states(root, store_id, end)
    for sink in sinks:
        (root / SINKS).mkdir(exist_ok=True)
        sink.load(root, store_id, log_min)


def _usable_summary(root: Path, store_id: str, log_min: int) -> DerivedSummary | None:
    summary = read_summary(root, store_id)
    if summary is not None and log_min < summary.min_offset:
        return None  # older log files were restored, but the files derived from them were not
    return summary


def _prepare_directories(root: Path, log: CommitLog) -> None:
    log.paths.prepare()
    log.paths.lock()
    for directory in (CONSUME_QUEUE, INDEX):
        (root / directory).mkdir(parents=True, exist_ok=True)


def _sync(log: CommitLog, begin: int, end: int) -> None:
    """Sync bytes that may be only in the page cache after a kill: recovery reports them as flushed."""
    for descriptor in log.descriptors(begin, end):
        os.fdatasync(descriptor)


def _confirmed_before(log: CommitLog, checkpoint: StoreCheckpoint, summary: DerivedSummary | None) -> int:
    """Return a CommitLog offset up to which the previous writer had confirmed the log.

    A record of a replica may be confirmed later, or be truncated, so that it must not be dispatched yet.
    """
    if summary is not None:
        return summary.position
    last_record = checkpoint.confirm_physical_offset
    return last_record if log.has_record_at(last_record) else 0


def _next_offsets(queues: ConsumeQueueTable, summary: DerivedSummary) -> dict[tuple[str, int], int]:
    """Return the next queue offsets in the summary, except those of topics that were deleted after it."""
    return {
        (topic, queue_id): each.next_offset
        for (topic, queue_id), each in summary.queues.items()
        if queues.deleted.get(topic, -1) < summary.position
    }


def _last_dispatched(
    tail: Tail, summary: DerivedSummary | None, checkpoint: StoreCheckpoint, dispatched: int
) -> DispatchStep:
    """Return the last record before the CommitLog offset `dispatched`, as far as it is known."""
    if dispatched == tail.position:
        return DispatchStep(dispatched, tail.last_record, tail.last_timestamp)
    if summary is not None and dispatched == summary.position:
        return DispatchStep(dispatched, summary.last_record, checkpoint.logics_msg_timestamp)
    return DispatchStep(dispatched, -1, 0)


def _load_index(
    index: IndexService, snapshots: list[IndexSnapshot] | None, log_min: int, *, closed_cleanly: bool
) -> None:
    if snapshots is None:
        index.rebuild_from(log_min)
    else:
        index.load(snapshots, log_min, closed_cleanly=closed_cleanly)


def _truncate_after_valid_units(
    queues: ConsumeQueueTable, loaded: Sequence[LoadedQueue], *, closed_cleanly: bool
) -> None:
    for queue in loaded:
        if queue.damage is not None or not queue.matches_snapshot:
            queues.discard_invalid(queue)
        elif not closed_cleanly:  # units after the snapshot are dispatched again
            queue.queue.clear_tail()

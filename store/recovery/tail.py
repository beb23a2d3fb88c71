"""Find the end of the CommitLog, and the offset from which on derived files lack records.

Fault model. A kill may stop an append at any byte. The first 8 bytes of an append are written last, so the
append is either complete or at least one of these bytes is still zero. A power loss keeps any subset of the
pages that were not flushed. Consume queues, index and the derived summary (`store.recovery.summary`) may be
missing, truncated, stale or damaged in any way.

The end of the log is found by reading its records one after another, beginning with a record that is known to
be valid. Damage before the end is logged and recorded as a hole (`store.commitlog.holes`). Dispatch then
resumes at the smallest of the offsets from which on some derived file lacks records. RocketMQ's rule, which
checks the last file only, would miss a derived file that was further behind.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from store.commitlog.commit_log import CommitLog
from store.commitlog.holes import Hole, LogFiles, holes_between, next_valid, torn_append_end
from store.common.logs import get_logger
from store.consumequeue.table import ConsumeQueueTable, LoadedQueue
from store.dispatch.sink import DispatchSink
from store.kernels import walk
from store.recovery.scan_ahead import LogScans, ScanAhead
from store.recovery.summary import DerivedSummary

_log = get_logger(__name__)


class Tail(NamedTuple):
    """Result of searching the end of the log, which is at CommitLog offset `position`.

    `last_record` is the offset of the last record, or -1 if no record was found. `unfinished_bytes` is the
    size of an incomplete append after the end of the log; this append was never acknowledged.
    """

    position: int
    last_record: int
    last_timestamp: int
    records: int
    holes: tuple[Hole, ...] = ()
    unfinished_bytes: int = 0

    @property
    def damaged_bytes(self) -> int:
        """Total size in bytes of the holes (damaged ranges) before the end of the log."""
        return sum(hole.size_bytes for hole in self.holes)


def find_tail(
    log: LogFiles,
    start: int,
    *,
    check_crc: bool,
    is_ours: bool,
    confirmed: int = 0,
    on_progress: Callable[[int], None] = lambda _: None,
    scans: LogScans | None = None,
) -> Tail:
    """Find the end of the log by reading its records, beginning with the record at CommitLog offset `start`.

    Invalid bytes that are followed by valid records are a hole, not the end of the log. If RocketMQ wrote the
    log (`is_ours` is False), old records may remain after its end. Valid records after damage are therefore
    ignored if they are older than the last record before the damage.

    If a kill interrupted an append, the log ends where this append begins: one of its first 8 bytes is zero,
    and no records of later appends follow. Before the CommitLog offset `confirmed`, no append can be
    incomplete. `on_progress` is called with the offsets that the search reaches. `scans` has scans of the
    log's files, with checks of their CRCs if `check_crc` is True; if it is None, the files are scanned here.

    Returns the end of the log, its last record, and the holes.
    """
    holes: list[Hole] = []
    position, last_record, last_timestamp, records, unfinished_bytes = start, -1, 0, 0, 0
    with ScanAhead(log, check_crc=check_crc) if scans is None else nullcontext(scans) as scanner:
        while position < log.end:
            on_progress(position)
            scan = scanner.scan(position)
            if scan.records:
                records += scan.records
                last_record, last_timestamp = scan.last_record, scan.last_timestamp
            file = log.file_at(position)
            if scan.code == walk.BLANK:
                position = file.end
                continue
            position = scan.position
            following = next_valid(log, position, None if is_ours else last_timestamp)
            if following is None:
                break
            if position >= confirmed and is_ours and (end := torn_append_end(log, position, following)) >= 0:
                unfinished_bytes = end - position
                _log.warning(
                    "partial_append_found",
                    path=str(file.path),
                    position=position - file.base,
                    bytes=unfinished_bytes,
                )
                break
            holes += holes_between(log, position, following, walk.REASONS[scan.code])
            position = following
    for hole in holes:
        _log.error("log_hole_found", **hole.as_json(log))
    return Tail(position, last_record, last_timestamp, records, tuple(holes), unfinished_bytes)


def scan_start(log: CommitLog, summary: DerivedSummary | None) -> int:
    """Return the CommitLog offset at which `find_tail` must begin.

    That is the last record in the derived summary if it is valid, otherwise the beginning of the log.
    """
    first = log.bases[0] if log.bases else 0
    if summary is None or not first <= summary.last_record < log.end:
        return first
    file = log.file_at(summary.last_record)
    size = walk.check_record_at(file.array, summary.last_record - file.base, file.size_bytes, file.base, True)
    return summary.last_record if size > 0 else first


class DispatchStart(NamedTuple):
    """The CommitLog offset at which dispatch must begin after a start.

    `reasons` lists why it is before the position in the derived summary; empty if it is not.
    """

    position: int
    reasons: list[str]


def dispatch_start(
    summary: DerivedSummary | None,
    log_min: int,
    tail: int,
    queues: ConsumeQueueTable,
    loaded: list[LoadedQueue],
    sinks: Sequence[DispatchSink],
) -> DispatchStart:
    """Return the smallest of the CommitLog offsets from which on some derived file lacks records.

    `tail` is the end of the log. A queue that lacks its first files is emptied, and is rebuilt from the
    beginning of the log.
    """
    if summary is None:
        return DispatchStart(log_min, ["there is no usable summary of the derived files"])
    positions = [(summary.position, "summary")]
    for queue, damage, _ in loaded:
        if damage is not None:
            positions.append((queue.end_physical_offset, f"{queue.topic}-{queue.queue_id}: {damage}"))
    for (topic, queue_id), snapshot in summary.queues.items():
        found = queues.find(topic, queue_id)
        if found is None or (found.first_offset > snapshot.first_offset and summary.min_offset >= log_min):
            positions.append((log_min, f"{topic}-{queue_id} is missing or lacks its first files"))
            if found is not None:
                queues.reset(found)
        elif found.next_offset < snapshot.next_offset:
            reason = f"{topic}-{queue_id} ends at {found.next_offset} instead of {snapshot.next_offset}"
            positions.append((found.end_physical_offset, reason))
    positions += [
        (sink.missing_from, f"{type(sink).__name__} lacks its last records")
        for sink in sinks
        if sink.missing_from is not None
    ]
    position = min(position for position, _ in positions)
    reasons = [reason for missing, reason in positions if missing < summary.position]
    return DispatchStart(min(max(position, log_min), tail), reasons)


def reserve_lost_offsets(queues: ConsumeQueueTable, following: Mapping[tuple[str, int], int]) -> None:
    """Append fillers to queues whose last records are in a hole, so that no queue offset is used twice.

    `following` maps each queue, as (topic, queue id), to the next queue offset in the derived summary. Raises
    OSError.
    """
    for (topic, queue_id), offset in following.items():
        queue = queues.find(topic, queue_id)
        if offset <= (queue.next_offset if queue is not None else 0):
            continue
        queue = queue or queues.get(topic, queue_id)
        _log.error(
            "queue_tail_missing",
            topic=topic,
            queue_id=queue_id,
            from_offset=queue.next_offset,
            to_offset=offset,
        )
        queue.reserve(offset)

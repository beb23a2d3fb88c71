"""Recovery: where the log ends, and from where on derived files lack something.

Fault model. A kill stops an append at any byte; the first 8 bytes of an append are written last, so it is
there as a whole or its place still starts with a zero somewhere in them. A power loss keeps any subset of the
pages that were not flushed. Consume queues, index and our own notes may be missing, cut, stale or damaged in
any way.

The log's end is found by walking its records from a place that is known to be good; damage before it is a
hole (`store.commitlog.holes`), and is told. Dispatch then starts at the minimum of what any derived file
lacks – not at "the last file", which forgets what was behind before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from store.commitlog.commit_log import CommitLog
from store.commitlog.holes import Hole, LogFiles, holes_between, next_valid, torn_append_end
from store.consumequeue.table import ConsumeQueueTable, LoadedQueue
from store.dispatch.sink import DispatchSink
from store.kernels import walk
from store.logs import get_logger
from store.recovery.scan_ahead import ScanAhead
from store.recovery.summary import DerivedSummary

_log = get_logger(__name__)


class Tail(NamedTuple):
    """The end of the log: what comes after `position` is no record. `last_record` is −1 if none was seen.

    `unfinished_bytes` are those of an append that never was: nobody was told that it is stored.
    """

    position: int
    last_record: int
    last_timestamp: int
    records: int
    holes: tuple[Hole, ...] = ()
    unfinished_bytes: int = 0

    @property
    def damaged_bytes(self) -> int:
        """What the holes take."""
        return sum(hole.size_bytes for hole in self.holes)


def find_tail(
    log: LogFiles,
    start: int,
    *,
    check_crc: bool,
    is_ours: bool,
    confirmed: int = 0,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Tail:
    """Walk the log from the record at `start`.

    Bytes that are no record, with sound ones behind them, are a hole and not the end. A log of RocketMQ's
    (not `is_ours`) may have stale records behind its end: there, what is older than what stands before the
    damage does not count. An append that a kill has cut short is the end: it leaves zeros in its first 8
    bytes, which are written last, and nothing but its own records behind; below `confirmed` there is none.
    """
    holes: list[Hole] = []
    position, last_record, last_timestamp, records, unfinished_bytes = start, -1, 0, 0, 0
    with ScanAhead(log, check_crc=check_crc) as scans:
        while position < log.end:
            on_progress(position)
            scan = scans.scan(position)
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
    """Where to look for the log's end: at the last noted record if it is still there, else from the start."""
    first = log.bases[0] if log.bases else 0
    if summary is None or not first <= summary.last_record < log.end:
        return first
    file = log.file_at(summary.last_record)
    size = walk.check_record_at(file.array, summary.last_record - file.base, file.size_bytes, file.base, True)
    return summary.last_record if size > 0 else first


class Lack(NamedTuple):
    """From where on to dispatch, and why."""

    position: int
    reasons: list[str]


def dispatch_start(
    summary: DerivedSummary | None,
    log_min: int,
    tail: int,
    queues: ConsumeQueueTable,
    loaded: list[LoadedQueue],
    sinks: Sequence[DispatchSink],
) -> Lack:
    """Return the minimum over all derived positions; queues that lack their beginning are emptied for it."""
    if summary is None:
        return Lack(log_min, ["nothing is noted about the derived files"])
    positions = [(summary.position, "noted")]
    for queue, damage, _ in loaded:
        if damage is not None:
            positions.append((queue.end_physical_offset, f"{queue.topic}-{queue.queue_id}: {damage}"))
    for (topic, queue_id), note in summary.queues.items():
        found = queues.find(topic, queue_id)
        if found is None or (found.first_offset > note.first_offset and summary.min_offset >= log_min):
            positions.append((log_min, f"{topic}-{queue_id} is missing or lacks its beginning"))
            if found is not None:
                queues.reset(found)
        elif found.next_offset < note.next_offset:
            positions.append((found.end_physical_offset, f"{topic}-{queue_id} ends at {found.next_offset}"))
    positions += [
        (sink.missing_from, f"{type(sink).__name__} lacks its end")
        for sink in sinks
        if sink.missing_from is not None
    ]
    position = min(position for position, _ in positions)
    reasons = [reason for lacking, reason in positions if lacking < summary.position]
    return Lack(min(max(position, log_min), tail), reasons)


def keep_places(queues: ConsumeQueueTable, following: Mapping[tuple[str, int], int]) -> None:
    """Queues whose last records are in a hole go on behind the offsets they had given: none is given twice.

    `following` has the next offset of each queue as it was noted. Raises OSError.
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
        if queue.next_offset == queue.first_offset:
            queue.start_at(offset)
        else:
            queue.fill_to(offset)

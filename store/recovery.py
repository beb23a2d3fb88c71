"""Recovery: where the log ends, and from where on derived files lack something.

Fault model. A kill stops an append at any byte; the first 8 bytes of an append are written last, so it is
there as a whole or its place still starts with a zero somewhere in them. A power loss keeps any subset of the
pages that were not flushed. Consume queues, index and our own notes may be missing, cut, stale or damaged in
any way.

The log's end is found by walking its records from a place that is known to be good. Dispatch then starts at
the minimum of what any derived file lacks – not at "the last file", which forgets what was behind before.
"""

from typing import NamedTuple

import numpy as np

from store.commit_log import CommitLog
from store.consume_queue_table import ConsumeQueueTable, LoadedQueue
from store.index_service import IndexService
from store.kernels import walk
from store.logs import get_logger
from store.mapped_file import MappedFile
from store.summary import DerivedSummary

_log = get_logger(__name__)

_MAGIC_END = 7  # the last of the bytes that are written last


class Tail(NamedTuple):
    """The end of the log: what comes after `position` is no record. `last_record` is −1 if none was seen."""

    position: int
    last_record: int
    last_timestamp: int
    records: int
    damaged_bytes: int


def find_tail(log: CommitLog, start: int, *, check_crc: bool, skip_damage: bool) -> Tail:
    """Walk the log from the record at `start`.

    With `skip_damage`, bytes that are no record count as damage, not as the end, when sound records follow
    that name their own places: only a log whose tails are zeroed (ours) can be sure that these are not stale.
    """
    found = np.zeros(walk.SCAN_FIELDS, dtype=np.int64)
    position, last_record, last_timestamp, records, damaged = start, -1, 0, 0, 0
    while position < log.end:
        file = log.file_at(position)
        place, code = walk.scan_records(
            file.array, position - file.base, file.size_bytes, file.base, check_crc, found
        )
        if found[walk.SCAN_COUNT]:
            records += int(found[walk.SCAN_COUNT])
            last_record = file.base + int(found[walk.SCAN_LAST_POSITION])
            last_timestamp = int(found[walk.SCAN_LAST_TIMESTAMP])
        if code == walk.BLANK:
            position = file.end
            continue
        position = file.base + int(place)
        following = _after_damage(log, file, int(place)) if skip_damage else None
        if following is None:
            break
        _log.error(
            "log_damaged", path=str(file.path), position=int(place), skipped_bytes=following - position
        )
        damaged += following - position
        position = following
    return Tail(position, last_record, last_timestamp, records, damaged)


def _after_damage(log: CommitLog, file: MappedFile, place: int) -> int | None:
    """The offset of the first sound record behind the one at `place`; None when the log ends here."""
    if place + _MAGIC_END >= file.size_bytes or file.array[place + _MAGIC_END] == 0:
        return None  # an append that was not finished, with all that belongs to it
    while True:
        limit = file.data_end()
        following = int(walk.next_record(file.array, place + 1, limit, file.base))
        if following < limit:
            return file.base + following
        if file.end >= log.end:
            return None
        file = log.file_at(file.end)
        place = -1


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
    summary: DerivedSummary,
    log_min: int,
    tail: int,
    queues: ConsumeQueueTable,
    loaded: list[LoadedQueue],
    index: IndexService | None,
) -> Lack:
    """The minimum over all derived positions; queues that lack their beginning are emptied for it."""
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
    if index is not None and index.lacks_from is not None:
        positions.append((index.lacks_from, "the index lacks its end"))
    position = min(position for position, _ in positions)
    reasons = [reason for lacking, reason in positions if lacking < summary.position]
    return Lack(min(max(position, log_min), tail), reasons)

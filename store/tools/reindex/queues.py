"""Put the units of all parts together: build the consume queues of one shard, or check the existing ones.

The sink of an open store receives the groups of the shard in the order of the log. It therefore closes gaps,
refuses impossible queue offsets and restarts recreated topics exactly as a broker does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.commitlog.commit_log import CommitLog
from store.consumequeue.consume_queue import ConsumeQueue, QueueSnapshot
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors, sync_files
from store.dispatch.queue_sink import ConsumeQueueSink
from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.kernels.index import KEY_FIELDS
from store.recovery.tail import reserve_lost_offsets
from store.tools.reindex.parts import BATCH_FIRST_UNIT, SHARD, map_units, read_groups, shard_of
from store.tools.reindex.store_files import StoreFiles
from store.tools.verify import notes
from store.tools.verify.findings import Finding, Report
from store.tools.verify.index import LogExtent
from store.tools.verify.queues import CheckedQueue, QueueChecker

_OPEN_QUEUES = 512
_NO_ROWS = np.empty((0, kernel.ROW_FIELDS), dtype=np.int64)
_NO_KEYS = np.empty((0, KEY_FIELDS), dtype=np.int64)


class Shard(NamedTuple):
    """One of `shards` shards of the queues; `number` is in [0, shards)."""

    number: int
    shards: int

    def has(self, topic: str, queue_id: int) -> bool:
        """Return True if the queue belongs to this shard."""
        return shard_of(topic, queue_id, self.shards) == self.number


class BuiltQueue(NamedTuple):
    """A queue that was built: its state, and the queue offset at which its last file ends."""

    topic: str
    queue_id: int
    snapshot: QueueSnapshot
    files_end: int


@dataclass
class ShardResult:
    """The result for the queues of one shard.

    Attributes:
        queues: The queues that were built; empty after a check.
        checked: Number of queues that were checked.
        refused: Maps the CommitLog offset of each record with an impossible queue offset to that offset.
        findings: The differences that a check found.
        omitted: Number of differences that are not listed.
        lagging: Number of records whose units may be missing, because the store was not closed cleanly.
    """

    queues: list[BuiltQueue] = field(default_factory=list)
    checked: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    omitted: int = 0
    lagging: int = 0


def build_queues(
    files: StoreFiles,
    extent: LogExtent,
    bases: Sequence[int],
    shard: Shard,
    places: Mapping[tuple[str, int], int],
) -> ShardResult:
    """Build the queues of one shard below the work directory, and flush their files.

    `bases` are the CommitLog offsets at which the log files begin. `places` maps queues to their next queue
    offset before the re-index: queue offsets of lost records are not used again. A shard may be built again.
    Raises StoreError, OSError.
    """
    descriptors = Descriptors(_OPEN_QUEUES)
    table = ConsumeQueueTable(files.new_queues, files.sizes.queue_file_bytes, descriptors)
    log = files.open_log(extent.begin, extent.end)
    try:
        refused = _dispatch(files, log, bases, shard, table)
        reserve_lost_offsets(table, {queue: place for queue, place in places.items() if shard.has(*queue)})
        for queue in table:
            queue.correct_min_offset(extent.begin)
        sync_files([path for queue in table for path in queue.dirty_paths()], files.work)
    finally:
        log.close()
        descriptors.close()
    return ShardResult([_state(queue) for queue in table], refused=refused)


def _state(queue: ConsumeQueue) -> BuiltQueue:
    files_end = queue.file_offsets().stop
    return BuiltQueue(queue.topic, queue.queue_id, queue.snapshot(is_last=False), files_end)


def check_queues(
    files: StoreFiles, extent: LogExtent, bases: Sequence[int], shard: Shard, *, may_lag: bool
) -> ShardResult:
    """Compare the queues of one shard with the units of the parts; nothing is written.

    `bases` are the CommitLog offsets at which the log files begin. With `may_lag`, the last units of queues
    may be missing, because the store was not closed cleanly. Raises StoreError, OSError.
    """
    descriptors = Descriptors(_OPEN_QUEUES, read_only=True)
    directory = files.queues
    table = ConsumeQueueTable(directory, files.sizes.queue_file_bytes, descriptors, CheckedQueue)
    for path in sorted(directory.glob("*/*")):
        topic = path.parent.name
        if path.name.isdigit() and path.is_dir() and shard.has(topic, int(path.name)):
            table.get(topic, int(path.name))
    log = files.open_log(extent.begin, extent.end)
    try:
        refused = _dispatch(files, log, bases, shard, table)
        report = Report(files.root)
        checker = QueueChecker(report, extent.holes, refused, extent.begin, extent.end, may_lag=may_lag)
        deleted = _DeletedQueues(files, extent.end)
        for queue in table:
            assert isinstance(queue, CheckedQueue)
            checker.check(queue, is_deleted=deleted.has(queue))
    finally:
        log.close()
        descriptors.close()
    return ShardResult([], len(table), refused, report.findings, report.omitted, checker.lagging)


class _DeletedQueues:
    """Recognizes queues of deleted topics, whose records may still be in the log."""

    def __init__(self, files: StoreFiles, log_end: int) -> None:
        summary = files.summary()
        self._topics = notes.known_topics(files.root)
        self._noted = summary.queues if summary is not None and summary.position >= log_end else None

    def has(self, queue: ConsumeQueue) -> bool:
        if self._topics is not None and queue.topic not in self._topics:
            return True
        return self._noted is not None and (queue.topic, queue.queue_id) not in self._noted


def _dispatch(
    files: StoreFiles, log: CommitLog, bases: Sequence[int], shard: Shard, table: ConsumeQueueTable
) -> dict[int, int]:
    """Pass the groups of one shard to the sink of the queues. Return the records that the sink refused."""
    sink = ConsumeQueueSink(log, table)
    for base in bases:
        rows = read_groups(files, base)
        rows = rows[rows[:, SHARD] == shard.number]
        units = map_units(files, base)
        borders = np.flatnonzero(np.diff(rows[:, BATCH_FIRST_UNIT])) + 1
        for groups in np.split(rows, borders) if len(rows) else ():
            first = int(groups[0, BATCH_FIRST_UNIT]) * kernel.UNIT_BYTES
            sink.accept(RecordBatch(log.file_at(base), _NO_ROWS, groups, units[first:], _NO_KEYS, True))
    return sink.refused


def refused_findings(files: StoreFiles, refused: Mapping[int, int]) -> list[Finding]:
    """Return the findings for records with an impossible queue offset, given by CommitLog offset."""
    report = Report(files.root)
    log = files.open_log()
    try:
        for position, queue_offset in sorted(refused.items()):
            base = log.base_of(position)
            reason = f"the record's queueOffset is {queue_offset:,}, which does not follow the ones before it"
            report.add(Path(log.path_of(base)), position - base + 20, 8, "log", reason)
    finally:
        log.close()
    return report.findings

"""Show a summary of a store: identity, topics and files. Fast, because only the ends of files are read."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from store.commitlog.log_paths import COMMIT_LOG, LogPaths
from store.consumequeue.consume_queue import ConsumeQueue, QueueSnapshot
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import UNIT_BYTES
from store.disk.files import Descriptors
from store.kernels import walk
from store.ownership.identity import (
    AbortFile,
    StoreName,
    read_name,
    read_writer_epoch,
    refuse_foreign_kinds,
    writer_of,
)
from store.recovery.checkpoint import StoreCheckpoint
from store.recovery.opening import CHECKPOINT, CONSUME_QUEUE
from store.recovery.summary import DerivedSummary, confirmed_bound, read_summary
from store.recovery.tail import Tail, find_tail
from store.tools.layout import find_sizes, log_directories, require_directory
from store.tools.rebuild import is_interrupted
from store.tools.verify.findings import Report
from store.tools.verify.log_view import LogView

_OPEN_QUEUES = 64


class StoredQueue(NamedTuple):
    """Offsets of one queue, and the storeTimestamps of its first and last message in ms.

    A time is None if the queue is empty or the record cannot be read.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_ms: int | None
    last_ms: int | None

    @property
    def messages(self) -> int:
        """The number of messages in the queue."""
        return self.max_offset - self.min_offset


@dataclass
class FilesInfo:
    """Number, total size and disk usage of the store's files of one kind, for example CommitLog files."""

    files: int = 0
    size_bytes: int = 0
    disk_bytes: int = 0


@dataclass
class StoreInfo:
    """Everything that `raymq store info` shows of a store."""

    root: Path
    name: StoreName | None
    epoch: int
    writer_pid: int | None
    closed_cleanly: bool
    rebuild_is_open: bool
    log_begin: int
    log_end: int
    last_ms: int
    noted_end: int | None
    checkpoint: StoreCheckpoint
    known_holes: int
    queues: list[StoredQueue]
    files: dict[str, FilesInfo]
    unconfirmed_bytes: int
    """Bytes at the end of the log that the group of this replica had not confirmed at the last checkpoint."""
    damage: list[str] = field(default_factory=list)
    """Damage seen without reading whole files; `raymq store verify` finds the rest."""

    def topics(self) -> list[dict[str, Any]]:
        """Return one table row for each topic: number of queues and messages, ranges of offsets and times."""
        by_topic: dict[str, list[StoredQueue]] = {}
        for queue in self.queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        return [_topic_row(topic, queues) for topic, queues in sorted(by_topic.items())]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq store info --json` prints."""
        identity = self.name.identity if self.name is not None else None
        return {
            "store": str(self.root),
            "madeBy": "RayMQ" if identity is not None else "RocketMQ",
            "cluster": identity.cluster if identity else None,
            "broker": identity.broker if identity else None,
            "replica": identity.replica if identity else None,
            "storeId": self.name.store_id if self.name else None,
            "epoch": self.epoch,
            "writerPid": self.writer_pid,
            "closedCleanly": self.closed_cleanly,
            "rebuildIsOpen": self.rebuild_is_open,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "lastStoreTimestamp": self.last_ms or None,
            "notedEnd": self.noted_end,
            "unconfirmedBytes": self.unconfirmed_bytes,
            "physicMsgTimestamp": self.checkpoint.physic_msg_timestamp,
            "logicsMsgTimestamp": self.checkpoint.logics_msg_timestamp,
            "indexMsgTimestamp": self.checkpoint.index_msg_timestamp,
            "knownHoles": self.known_holes,
            "files": {
                kind: {"files": each.files, "bytes": each.size_bytes, "diskBytes": each.disk_bytes}
                for kind, each in self.files.items()
            },
            "damage": self.damage,
            "topics": [
                row
                | {"queueList": [_queue_row(queue) for queue in self.queues if queue.topic == row["topic"]]}
                for row in self.topics()
            ],
        }


def _topic_row(topic: str, queues: list[StoredQueue]) -> dict[str, Any]:
    return {
        "topic": topic,
        "queues": len(queues),
        "messages": sum(queue.messages for queue in queues),
        "min_offset": min(queue.min_offset for queue in queues),
        "max_offset": max(queue.max_offset for queue in queues),
        "first_ms": min((queue.first_ms for queue in queues if queue.first_ms is not None), default=None),
        "last_ms": max((queue.last_ms for queue in queues if queue.last_ms is not None), default=None),
    }


def _queue_row(queue: StoredQueue) -> dict[str, Any]:
    return {
        "queueId": queue.queue_id,
        "minOffset": queue.min_offset,
        "maxOffset": queue.max_offset,
        "firstMs": queue.first_ms,
        "lastMs": queue.last_ms,
    }


class _StoreInspection:
    """Reads the files of one store to collect a `StoreInfo`."""

    def __init__(self, root: Path, log_paths: Sequence[Path]) -> None:
        require_directory(root)
        refuse_foreign_kinds(root)
        self.root = root
        self.name = read_name(root)
        paths = log_directories(root, log_paths, self.name)
        self.report = Report(root)
        self.paths = LogPaths(root, paths)
        sizes = find_sizes(root, paths, self.name)
        self.log = LogView(self.paths, sizes.log_file_bytes, self.report)
        self.summary = read_summary(root, self.name.store_id) if self.name is not None else None
        self.descriptors = Descriptors(_OPEN_QUEUES, read_only=True)
        self.table = ConsumeQueueTable(root / CONSUME_QUEUE, sizes.queue_file_bytes, self.descriptors)
        self.table.add_all_on_disk()
        self.last_unit = -1  # the highest physical offset that a unit contains

    def info(self) -> StoreInfo:
        """Return the summary of the store."""
        queues = [self._queue(queue) for queue in self.table]
        tail = self._tail()
        summary: DerivedSummary | None = self.summary
        checkpoint = StoreCheckpoint.read(self.root / CHECKPOINT)
        bound = confirmed_bound(summary, checkpoint)
        return StoreInfo(
            root=self.root,
            name=self.name,
            epoch=read_writer_epoch(self.root),
            writer_pid=writer_of(self.root),
            closed_cleanly=not AbortFile(self.root).exists,
            rebuild_is_open=is_interrupted(self.root),
            log_begin=self.log.first,
            log_end=tail.position,
            last_ms=tail.last_timestamp,
            noted_end=summary.position if summary is not None else None,
            checkpoint=checkpoint,
            known_holes=len(summary.holes) if summary is not None else 0,
            queues=queues,
            files=self._files(),
            unconfirmed_bytes=0 if bound is None else max(tail.position - bound, 0),
            damage=[f"{each.path}: {each.reason}" for each in self.report.findings],
        )

    def close(self) -> None:
        """Close all files."""
        self.log.close()
        self.descriptors.close()

    def _tail(self) -> Tail:
        """Find the end of the CommitLog.

        The search begins at the last record that is listed in raymq.derived or in a consume queue.
        """
        noted = self.summary.last_record if self.summary is not None else -1
        starts = (max(noted, self.last_unit), self.log.first)
        start = next((start for start in starts if self._timestamp(start) is not None), self.log.first)
        return find_tail(self.log, start, check_crc=False, is_ours=self.name is not None)

    def _timestamp(self, position: int) -> int | None:
        """Return the storeTimestamp of the record at a CommitLog offset.

        Returns None if there is no valid record.
        """
        if not self.log.first <= position < self.log.end:
            return None
        file = self.log.file_at(position)
        place = position - file.base
        size = walk.check_record_at(file.array, place, file.size_bytes, file.base, False)
        return int(walk.store_timestamp_at(file.array, place)) if size > 0 else None

    # ---- queues --------------------------------------------------------------------------------------------

    def _queue(self, queue: ConsumeQueue) -> StoredQueue:
        file_bytes = queue.units_per_file * UNIT_BYTES
        bases = sorted(
            int(entry.name)
            for entry in os.scandir(queue.directory)
            if entry.name.isdigit() and entry.stat().st_size == file_bytes
        )
        if not bases:
            return StoredQueue(queue.topic, queue.queue_id, 0, 0, None, None)
        first, made_to = bases[0] // UNIT_BYTES, bases[-1] // UNIT_BYTES + queue.units_per_file
        queue.set_extent(QueueSnapshot(first, first, made_to, 0, [], []), made_to)
        end = next(
            (end for base in reversed(bases) if (end := _end_of(queue, base // UNIT_BYTES)) >= 0), first
        )
        queue.set_extent(QueueSnapshot(first, first, end, 0, [], []), made_to)
        queue.correct_min_offset(self.log.first)
        first_ms = last_ms = None
        if queue.min_offset < end:
            last = queue.unit_at(end - 1)
            self.last_unit = max(self.last_unit, last.physical_offset)
            first_ms = self._timestamp(queue.unit_at(queue.min_offset).physical_offset)
            # A filler unit stands for a lost message, which has no time.
            last_ms = None if last.is_filler else self._timestamp(last.physical_offset)
        return StoredQueue(queue.topic, queue.queue_id, queue.min_offset, end, first_ms, last_ms)

    # ---- files ---------------------------------------------------------------------------------------------

    def _files(self) -> dict[str, FilesInfo]:
        kinds: dict[str, FilesInfo] = {}
        for directory in self.paths.all:
            _add_files(kinds.setdefault(COMMIT_LOG, FilesInfo()), directory)
        logs = {directory.resolve() for directory in self.paths.all}
        for entry in sorted(self.root.iterdir()):
            if entry.resolve() not in logs:
                _add_files(kinds.setdefault(entry.name if entry.is_dir() else "other", FilesInfo()), entry)
        return kinds


def _end_of(queue: ConsumeQueue, first: int) -> int:
    """Return the queue offset after the last unit of a consume queue file, or −1 if the file is empty.

    `first` is the queue offset at which the file begins.
    """
    low, high = first, first + queue.units_per_file
    while low < high:
        middle = (low + high) // 2
        if any(queue.read_units(middle, 1)):
            low = middle + 1
        else:
            high = middle
    return low if low > first else -1


def _add_files(info: FilesInfo, path: Path) -> None:
    for stat in _stats(path):
        info.files += 1
        info.size_bytes += stat.st_size
        info.disk_bytes += stat.st_blocks * 512


def _stats(path: Path) -> Iterator[os.stat_result]:
    if path.is_dir():
        for entry in os.scandir(path):
            yield from _stats(Path(entry.path)) if entry.is_dir() else [entry.stat()]
    else:
        yield path.stat()


def store_info(root: Path, *, log_paths: Sequence[Path] = ()) -> StoreInfo:
    """Return a summary of the store at `root`.

    `log_paths` are the directories of the log, if they are neither in raymq.json nor `commitlog`.
    Raises StoreError if there is no store, or one of an unsupported kind.
    """
    inspection = _StoreInspection(root, log_paths)
    try:
        return inspection.info()
    finally:
        inspection.close()

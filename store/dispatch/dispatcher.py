"""Dispatcher: passes confirmed records of the CommitLog to the registered sinks.

    log ──→ scan a slice (one kernel) ──→ RecordBatch ──→ accept of each sink, in order

A sink derives data from records: consume queues, the index, and others. A slice is the part of the log that
one step reads. Appends, recovery, rebuild and replicas all use the same dispatcher. A range may be dispatched
again: sinks skip the records that they already have.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from store.commitlog.holes import LogFiles
from store.commitlog.mapped_file import MappedFile
from store.consumequeue.unit import UNIT_BYTES
from store.dispatch.sink import DispatchSink, RecordBatch
from store.kernels import resync, walk
from store.kernels import units as kernel
from store.kernels.index import KEY_FIELDS, KEY_HASH, KEY_PHYSICAL_OFFSET
from store.kernels.properties import FOUND_FIELDS

_ROWS = 16_384  # a step ends before the record for which one of the three tables is full
_GROUPS = 128  # queues per step: each costs 5 µs, or 10 µs if its file must be opened
_KEYS = 65_536
_INCOMPLETE = (walk.NO_ROOM, walk.BEYOND_END)


class Mode(Enum):
    """How much the dispatcher trusts the bytes of the log."""

    LIVE = "live"  # trust records; the last one may be incomplete, because replicas receive bytes
    RECOVERY = "recovery"  # check the CRC of each record and skip damaged ones
    CHECKED = "checked"  # records were checked by an earlier walk; skip damaged ones


class DispatchStep(NamedTuple):
    """Result of one dispatch step.

    `position` is the CommitLog offset at which the next step begins. `last_record` and `timestamp` are the
    CommitLog offset and the storeTimestamp of the last record dispatched (-1 and 0 if there was none).
    """

    position: int
    last_record: int
    timestamp: int


class _Found(NamedTuple):
    """Result of scanning a slice of the log with the dispatch kernel (`kernels.units.dispatch_records`).

    `position` is the position in the file at which the scan stopped, and `status` the reason. `rows`,
    `groups` and `keys` are the numbers of records, of queues with new units, and of index keys. `timestamp`
    is the storeTimestamp of the last record.
    """

    position: int
    status: int
    rows: int
    groups: int
    keys: int
    timestamp: int


class Dispatcher:
    """Dispatches records of the log to its sinks, one slice of the log per step."""

    def __init__(
        self, log: LogFiles, sinks: Sequence[DispatchSink], delays_ms: list[int], slice_bytes: int
    ) -> None:
        self._log = log
        self._sinks = sinks
        self._delays_ms = np.array(delays_ms, dtype=np.int64)
        self._slice_bytes = slice_bytes
        self._rows = np.zeros((_ROWS, kernel.ROW_FIELDS), dtype=np.int64)
        self._groups = np.zeros((_GROUPS, kernel.GROUP_FIELDS), dtype=np.int64)
        self._buckets = np.zeros(4 * _GROUPS, dtype=np.int32)  # a power of two: hashes are masked
        self._units = np.zeros(_ROWS * UNIT_BYTES, dtype=np.uint8)
        self._keys = np.zeros((_KEYS, KEY_FIELDS), dtype=np.int64)
        self._found = np.zeros(FOUND_FIELDS, dtype=np.int64)

    def step(self, begin: int, end: int, mode: Mode = Mode.LIVE) -> DispatchStep:
        """Dispatch at most one slice of the CommitLog offsets [begin, end).

        A record must begin at `begin`. The step ends before an incomplete record. Raises OSError (for
        example, the disk is full) or StoreError; the caller must then repeat the step.
        """
        file = self._log.file_at(begin)
        start = begin - file.base
        stop = min(end - file.base, file.size_bytes)
        found = self._scan(file, start, min(stop, start + self._slice_bytes), mode)
        if not found.rows and found.status in _INCOMPLETE:
            size = walk.check_record_at(file.array, start, stop, file.base, False)
            if size > 0:  # a valid record that is larger than a slice
                found = self._scan(file, start, start + size, mode)
        if not found.rows:
            return DispatchStep(file.base + self._place_after(file, start, stop, found.status, mode), -1, 0)
        batch = RecordBatch(
            file,
            self._rows[: found.rows],
            self._groups[: found.groups],
            self._units,
            self._keys[: found.keys],
            mode is not Mode.LIVE,
        )
        for sink in self._sinks:
            sink.accept(batch)
        position = file.size_bytes if found.status == kernel.AT_BLANK else found.position
        last_record = file.base + int(self._rows[found.rows - 1, kernel.ROW_POSITION])
        return DispatchStep(file.base + position, last_record, found.timestamp)

    def run(self, begin: int, end: int, mode: Mode) -> int:
        """Dispatch the CommitLog offsets [begin, end). Return the offset at which dispatch stopped.

        The result is less than `end` if the last record is incomplete.
        """
        while begin < end:
            step = self.step(begin, end, mode)
            if step.position == begin:
                break
            begin = step.position
        return begin

    def next_offsets(self, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Find the next queue offset of each queue that has records in [begin, end); nothing is dispatched.

        Yields tuples (topic, queue id, next queue offset). A queue may occur several times; its last tuple is
        valid.
        """
        for file, found in self._walk(begin, end, Mode.LIVE):
            for group in self._groups[: found.groups].tolist():
                if group[kernel.GROUP_COUNT]:
                    topic = group[kernel.GROUP_TOPIC]
                    name = bytes(file.view[topic : topic + group[kernel.GROUP_TOPIC_LENGTH]])
                    yield name, group[kernel.GROUP_QUEUE_ID], group[kernel.GROUP_NEXT_QUEUE_OFFSET]

    def find_hash(self, begin: int, end: int, key_hash: int) -> Iterator[int]:
        """Yield the CommitLog offset of each record in [begin, end) with a key of this hash.

        Nothing is dispatched.
        """
        for _, found in self._walk(begin, end, Mode.CHECKED):
            keys = self._keys[: found.keys]
            yield from keys[keys[:, KEY_HASH] == key_hash, KEY_PHYSICAL_OFFSET].tolist()

    def _walk(self, begin: int, end: int, mode: Mode) -> Iterator[tuple[MappedFile, _Found]]:
        while begin < end:
            file = self._log.file_at(begin)
            start, stop = begin - file.base, min(end - file.base, file.size_bytes)
            found = self._scan(file, start, stop, mode)
            yield file, found
            place = found.position if found.rows else self._place_after(file, start, stop, found.status, mode)
            if place == start:
                return
            begin = file.base + place

    def _scan(self, file: MappedFile, start: int, stop: int, mode: Mode) -> _Found:
        return _Found(
            *kernel.dispatch_records(
                file.array, start, stop, file.base, mode is Mode.RECOVERY, self._delays_ms,
                self._rows, self._groups, self._buckets, self._units, self._keys, self._found,
            )
        )  # fmt: skip

    def _place_after(self, file: MappedFile, start: int, stop: int, status: int, mode: Mode) -> int:
        """Return the position in the file at which to resume after a scan that found no record at `start`."""
        if status == kernel.AT_BLANK:
            return file.size_bytes
        if status in _INCOMPLETE and mode is Mode.LIVE:
            size = int.from_bytes(file.view[start : start + 4], "big")
            # A replica may have received only a part of a record that is longer than a slice.
            longest = max(self._slice_bytes, size if size <= file.size_bytes - start else 0)
            if start + longest >= stop:
                return start
        return int(resync.next_record(file.array, start + 1, stop, file.size_bytes, file.base))

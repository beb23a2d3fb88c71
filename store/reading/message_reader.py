"""MessageReader: reads messages of a queue that match a filter, as slices of the CommitLog.

Each record is compared with its consume queue unit before it is served.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from store.commitlog.commit_log import CommitLog
from store.commitlog.mapped_file import MappedFile
from store.common.bounded_dict import BoundedDict
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.consumequeue.readable_queue import ReadableQueue
from store.consumequeue.unit import FILLER_SIZE, UNIT, UNIT_BYTES
from store.disk.residency import JOINED_GAP_BYTES, READ_AHEAD_FROM_BYTES, NotResident
from store.kernels import read as kernel
from store.message.record import MIN_RECORD_BYTES, QUEUE_OFFSET
from store.reading.message_filter import MessageFilter

_log = get_logger(__name__)

# A filtered read checks at most this many units (RocketMQ's maxFilterMessageSize: 16,000 bytes of units), or
# `max_messages` units if that is more.
_FILTER_SCAN_UNITS = 800
# A read whose filter reads records also stops after it has rejected this many bytes.
_FILTER_SCAN_BYTES = 4 * 1024 * 1024
_FILTER_BUDGET_NS = 5 * NS_PER_MS
"""Time after which a read stops whose filter reads records. The next read continues there."""
_SIZE = Struct(">i")  # a record begins with its size
_QUEUE_OFFSET = Struct(f">{QUEUE_OFFSET}xq")
# A bulk read reads at least this many units.
_BULK_UNITS_MIN = 4096
# Shorter ranges of records are copied into one slice: 32 slices take 7 % of a pull's time.
_JOINED_BYTES = 8 * 1024
_JOINED_MIN = 4
_NO_CODES = np.zeros(0, dtype=np.int64)
_REPORTED_MAX = 4096  # damaged offsets to remember, so that each is logged once


class GetMessageStatus(IntEnum):
    """The outcome of a read (RocketMQ GetMessageStatus)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


@dataclass(slots=True)
class GetMessageResult:
    """Result of a read.

    Each slice contains one or more complete records: adjacent ones of the mapped CommitLog, or a copy of
    small ones that are not adjacent.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    slices: list[memoryview] = field(default_factory=list)
    message_count: int = 0
    size_bytes: int = 0
    log_end: int = 0
    """The CommitLog offset after the last record."""


def out_of_range_result(queue: ReadableQueue | None, offset: int) -> GetMessageResult | None:
    """Return the result for a read at `offset` if the queue does not contain this offset.

    See docs/store-format.md#read-status.

    Returns None if the queue contains the offset.
    """
    status = GetMessageStatus
    if queue is None:
        return GetMessageResult(status.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    first, following = queue.min_offset, queue.next_offset
    if first <= offset < following:
        return None
    if following == 0:
        return GetMessageResult(status.NO_MESSAGE_IN_QUEUE, 0, first, following)
    if offset < first:
        return GetMessageResult(status.OFFSET_TOO_SMALL, first, first, following)
    if offset == following:
        return GetMessageResult(status.OFFSET_OVERFLOW_ONE, offset, first, following)
    return GetMessageResult(status.OFFSET_OVERFLOW_BADLY, following, first, following)


class MessageReader:
    """Reads the queues of one store."""

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._now_ns = clock.monotonic_ns
        self._progress = np.zeros(kernel.READ_FIELDS, dtype=np.int64)
        self._counts = self._progress.data  # the same memory, faster to access in Python
        self._runs = np.zeros((kernel.RUNS_MAX, 2), dtype=np.int64)
        self._spans = np.zeros((kernel.SPANS_MAX, 2), dtype=np.int64)
        self.bad_units = 0  # skipped units that do not lead to their records
        self.gap_units = 0  # skipped fillers, whose records no longer exist
        self._mean_bytes = MIN_RECORD_BYTES  # mean size of the records of the last read
        self._reported = BoundedDict[tuple[str, int, int], None](_REPORTED_MAX)

    def read(
        self,
        queue: ReadableQueue | None,
        offset: int,
        max_messages: int,
        max_bytes: int,
        wanted: MessageFilter,
    ) -> GetMessageResult:
        """Read the messages from queue offset `offset` on that the filter `wanted` accepts.

        At most `max_messages` records and `max_bytes` are returned, but the first record is returned even if
        it is larger. A read ends at the end of the consume queue file in which it begins.

        Raises StoreError if the queue cannot be read, and NotResident if the read would have to wait for the
        disk inside `resident_only`.
        """
        out_of_range = out_of_range_result(queue, offset)
        if out_of_range is not None or queue is None:
            assert out_of_range is not None
            if offset > out_of_range.max_offset and not self._log.positions.is_end_known:
                # The queue may be longer than is known, and the reader may have read up to `offset` before.
                return GetMessageResult(
                    GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, out_of_range.min_offset, offset
                )
            return out_of_range
        result = GetMessageResult(GetMessageStatus.FOUND, offset, queue.min_offset, queue.next_offset)
        if wanted.accepts_all:
            count = min(max_messages, self._units_for(max_bytes))
        elif wanted.reads_records:
            count = _FILTER_SCAN_UNITS  # reading records takes longer than reading units
        else:
            count = max(max_messages, _FILTER_SCAN_UNITS)
        units = queue.read_units(offset, count)
        if not units:
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = offset - offset % queue.units_per_file + queue.units_per_file
            return result
        self._gather(queue, np.frombuffer(units, dtype=np.uint8), result, max_messages, max_bytes, wanted)
        if not result.message_count:
            gone = self._log.positions.min > 0 and queue.min_offset > offset
            result.status = (
                GetMessageStatus.MESSAGE_WAS_REMOVING if gone else GetMessageStatus.NO_MATCHED_MESSAGE
            )
        return result

    def _units_for(self, max_bytes: int) -> int:
        """Estimate how many units must be read for `max_bytes` bytes of records.

        The estimate uses the mean record size of the last read. If it is too low, the read returns less than
        `max_bytes`.
        """
        at_most = max_bytes // MIN_RECORD_BYTES + 1
        return min(at_most, max(max_bytes * 3 // 2 // self._mean_bytes, _BULK_UNITS_MIN))

    def _gather(
        self,
        queue: ReadableQueue,
        units: NDArray[np.uint8],
        result: GetMessageResult,
        max_messages: int,
        max_bytes: int,
        wanted: MessageFilter,
    ) -> None:
        counts = self._counts
        self._progress.fill(0)
        positions, count = self._log.positions, len(units) // UNIT_BYTES
        filters = wanted.reads_units
        codes = wanted.accepted_codes(units) if filters else _NO_CODES
        topic = np.frombuffer(queue.topic.encode(), dtype=np.uint8)
        first = result.next_begin_offset
        rejected_bytes = 0
        ends_ns = self._now_ns() + _FILTER_BUDGET_NS if wanted.reads_records else 0
        while counts[kernel.READ_UNITS] < count and rejected_bytes < _FILTER_SCAN_BYTES:
            unit = counts[kernel.READ_UNITS] * UNIT_BYTES
            physical_offset = UNIT.unpack_from(units.data, unit)[0]
            if not positions.min <= physical_offset < positions.written:
                self._skip_bad(queue, first + counts[kernel.READ_UNITS], physical_offset)
                continue
            file = self._log.file_at(physical_offset)
            limit = min(positions.written, file.end) - file.base
            if self._log.may_be_cold(physical_offset):
                try:
                    max_messages = self._require_resident(
                        file, limit, units, codes, filters, max_messages, max_bytes
                    )
                except NotResident:
                    if not rejected_bytes:
                        raise
                    break  # do not examine the rejected records again: the next read resumes here
            runs, status = kernel.gather_records(
                file.array, limit, file.base, units, first, queue.queue_id, topic, codes, filters,
                max_messages, max_bytes, self._progress, self._runs,
            )  # fmt: skip
            if runs:
                result.log_end = file.base + int(self._runs[runs - 1, 1])
            rejected, left = self._take(file.view, runs, result, wanted, ends_ns)
            rejected_bytes += rejected
            if left:
                self._put_back(file.view, left, first)
                break
            if status == kernel.BAD_UNIT:
                self._skip_bad(queue, first + counts[kernel.READ_UNITS], physical_offset)
            elif status == kernel.ENOUGH and not rejected:
                break
        if counts[kernel.READ_FILLERS]:
            self._report_gap(queue, first, units[: counts[kernel.READ_UNITS] * UNIT_BYTES])
        result.message_count = counts[kernel.READ_MESSAGES]
        result.size_bytes = counts[kernel.READ_BYTES]
        if result.message_count:
            self._mean_bytes = max(result.size_bytes // result.message_count, MIN_RECORD_BYTES)
        result.next_begin_offset = first + counts[kernel.READ_UNITS]

    def _take(
        self, view: memoryview, runs: int, result: GetMessageResult, wanted: MessageFilter, ends_ns: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Add the matching records of the first `runs` runs to the result.

        Returns the bytes of the records that do not match, and the runs of those that were not examined,
        because `ends_ns` has passed. At least one record is examined.
        """
        slices, counts, rejected_bytes = result.slices, self._counts, 0
        ranges: list[tuple[int, int]] = self._runs[:runs].tolist()
        left: list[tuple[int, int]] = []
        is_small = counts[kernel.READ_BYTES] < runs * _JOINED_BYTES
        if is_small and runs >= _JOINED_MIN and not wanted.reads_records:
            slices.append(memoryview(b"".join([view[begin:end] for begin, end in ranges])))
            return 0, left
        for number, (begin, end) in enumerate(ranges):
            if not wanted.reads_records:
                slices.append(view[begin:end])
                continue
            first = position = begin  # records from `first` to `position` match and are not in the result yet
            while position < end and not left:
                following = position + _SIZE.unpack_from(view, position)[0]
                if not wanted.matches(view[position:following]):
                    if first < position:
                        slices.append(view[first:position])
                    first = following
                    rejected_bytes += following - position
                    counts[kernel.READ_MESSAGES] -= 1
                position = following
                if self._now_ns() >= ends_ns:
                    rest = ((position, end), *ranges[number + 1 :])
                    left = [each for each in rest if each[0] < each[1]]
            if first < position:
                slices.append(view[first:position])
            if left:
                break
        counts[kernel.READ_BYTES] -= rejected_bytes
        return rejected_bytes, left

    def _put_back(self, view: memoryview, ranges: list[tuple[int, int]], first_offset: int) -> None:
        """Set the progress of a read back to the first of the records in `ranges`."""
        counts = self._counts
        counts[kernel.READ_UNITS] = _QUEUE_OFFSET.unpack_from(view, ranges[0][0])[0] - first_offset
        for position, end in ranges:
            while position < end:
                size = _SIZE.unpack_from(view, position)[0]
                counts[kernel.READ_MESSAGES] -= 1
                counts[kernel.READ_BYTES] -= size
                position += size

    def _require_resident(
        self,
        file: MappedFile,
        limit: int,
        units: NDArray[np.uint8],
        codes: NDArray[np.int64],
        filters: bool,
        max_messages: int,
        max_bytes: int,
    ) -> int:
        """Raise NotResident unless the next read accesses only resident bytes of the log file `file`.

        The read begins with the next of `units` in `self._progress`. Returns the number of messages to which
        the caller must limit the read. It is less than `max_messages` if the records are in many different
        places, because loading all of them would take long.
        """
        residency, counts = self._log.residency, self._counts
        first = counts[kernel.READ_UNITS] * UNIT_BYTES
        begin = UNIT.unpack_from(units.data, first)[0] - file.base
        last, size, _ = UNIT.unpack_from(units.data, len(units) - UNIT_BYTES)
        end = last - file.base + size
        is_short = 0 < end - begin < READ_AHEAD_FROM_BYTES  # a short range is checked as a whole
        if is_short and residency.missing_range(file, begin, min(end, limit)) is None:
            return max_messages
        spans, messages = kernel.record_spans(
            limit, file.base, units, codes, filters, max_messages, max_bytes, self._progress,
            JOINED_GAP_BYTES, self._spans,
        )  # fmt: skip
        found = [residency.missing_range(file, begin, end) for begin, end in self._spans[:spans].tolist()]
        lacks = [each for each in found if each is not None]
        if lacks:
            raise NotResident(lacks)
        return min(max_messages, messages) if spans == kernel.SPANS_MAX else max_messages

    def _skip_bad(self, queue: ReadableQueue, offset: int, physical_offset: int) -> None:
        """Log and skip a unit that does not point to a record of its queue offset.

        Later units are then served.
        """
        self._counts[kernel.READ_UNITS] += 1
        self.bad_units += 1
        if self._is_first_report(queue, offset):
            _log.error(
                "consume_queue_unit_invalid",
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
                position=physical_offset,
            )

    def _report_gap(self, queue: ReadableQueue, first: int, units: NDArray[np.uint8]) -> None:
        """Log the placeholder units among `units`, if any is left after `_put_back`."""
        sizes = units.reshape(-1, UNIT_BYTES)[:, 8:12].copy().view(">i4")[:, 0]
        offsets = first + np.flatnonzero(sizes == FILLER_SIZE)
        if not offsets.size:
            return
        self.gap_units += len(offsets)
        if self._is_first_report(queue, int(offsets[0])):
            _log.warning(
                "queue_gap_skipped",
                topic=queue.topic,
                queue_id=queue.queue_id,
                from_offset=int(offsets[0]),
                messages=len(offsets),
            )

    def _is_first_report(self, queue: ReadableQueue, offset: int) -> bool:
        """Return True if no problem has been logged yet for this queue offset.

        Repeated pulls of the same offset therefore log a problem only once.
        """
        place = (queue.topic, queue.queue_id, offset)
        if place in self._reported:
            return False
        self._reported[place] = None
        return True

"""The one dispatch (design law 3): from confirmed log bytes to consume queues and index.

Put, recovery, rebuild and replicas share it. It may be given again what it has had: units and keys that are
there already are skipped.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import LogFiles
from store.commitlog.mapped_file import MappedFile
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import UNIT, UNIT_BYTES
from store.errors import StoreError
from store.kernels import resync, unit_files, walk
from store.kernels import units as kernel
from store.kernels.index import KEY_FIELDS, KEY_HASH, KEY_PHYSICAL_OFFSET
from store.logs import get_logger
from store.message.record import MIN_RECORD_BYTES, decode_record

_log = get_logger(__name__)

_ROWS = 16_384
_GROUPS = 128  # queues that one step writes to: 5 µs each, 10 where a file is to be opened
_TOGETHER_MIN = 4  # fewer files take no longer one by one
_KEYS = 65_536
_REFUSED_MAX = 100_000
_GAP_MAX = 1_000_000  # units to hold the places of records that are gone: 20 MB


class KeySink(Protocol):
    """Where the keys go: the index."""

    def put(self, keys: NDArray[np.int64], count: int) -> None:
        """Take the first `count` rows. Raises OSError."""


class Arrival:
    """A queue has got messages: its new end, and the tags codes among them for filters of waiting pulls."""

    __slots__ = ("_units", "max_offset", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, max_offset: int, units: bytes) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.max_offset = max_offset
        self._units = units  # as they came: hardly anybody asks, and there may be thousands in a turn

    @property
    def tags_codes(self) -> frozenset[int]:
        """The different tags codes of the new messages."""
        count = len(self._units) // UNIT_BYTES
        codes = np.ndarray(count, np.dtype(">i8"), self._units, offset=12, strides=(UNIT_BYTES,))
        return frozenset(codes.tolist())


class Step(NamedTuple):
    """How far one step came; place and storeTimestamp of the last record it saw, −1 and 0 for none."""

    position: int
    last_record: int
    timestamp: int


_Waiting = tuple[int, ConsumeQueue, memoryview, int]
"""A group by number, its queue, its units, and where the last one's record ends."""


class Dispatcher:
    """Dispatches ranges of the log, a slice a step."""

    def __init__(
        self,
        log: LogFiles,
        queues: ConsumeQueueTable,
        index: KeySink | None,
        delays_ms: list[int],
        slice_bytes: int,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._delays_ms = np.array(delays_ms, dtype=np.int64)
        self._slice_bytes = slice_bytes
        self._rows = np.zeros((_ROWS, kernel.ROW_FIELDS), dtype=np.int64)
        self._groups = np.zeros((_GROUPS, kernel.GROUP_FIELDS), dtype=np.int64)
        self._buckets = np.zeros(4 * _GROUPS, dtype=np.int32)
        self._units = np.zeros(_ROWS * UNIT_BYTES, dtype=np.uint8)
        self._unit_bytes = self._units.data
        self._keys = np.zeros((_KEYS, KEY_FIELDS), dtype=np.int64)
        # Then bodies' CRCs are checked, and units that are there already are compared and mended.
        self.is_recovering = False
        self.checks_records = True  # while it is recovering, with their CRC
        self.refused: dict[int, int] = {}  # records whose queue offsets cannot be right, and these

    def step(self, begin: int, end: int, arrivals: list[Arrival] | None = None) -> Step:
        """Dispatch up to one slice of [begin, end), which starts at a record; adds to `arrivals`.

        Stops before a record that is not whole yet. Raises OSError (a full disk), StoreError.
        """
        file = self._log.file_at(begin)
        start = begin - file.base
        stop = min(end - file.base, file.size_bytes)
        position, status, rows, groups, keys, timestamp = kernel.dispatch_records(
            file.array,
            start,
            min(stop, start + self._slice_bytes),
            file.base,
            self.is_recovering and self.checks_records,
            self._delays_ms,
            self._rows,
            self._groups,
            self._buckets,
            self._units,
            self._keys,
        )
        if rows:
            if status == kernel.AT_BLANK:
                position = file.size_bytes
            self._put_groups(file, groups, arrivals)
            if self._index is not None and keys:
                self._index.put(self._keys, keys)
            last_record = file.base + int(self._rows[rows - 1, kernel.ROW_POSITION])
            return Step(file.base + position, last_record, timestamp)
        return self._beyond(file, start, stop, status)

    def run(self, begin: int, end: int) -> int:
        """Dispatch all of [begin, end); returns how far that came."""
        while begin < end:
            step = self.step(begin, end)
            if step.position == begin:
                break
            begin = step.position
        return begin

    def next_offsets(self, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Topic, queue id and next queue offset of what stands in [begin, end); nothing is dispatched by
        this.
        """
        for file, groups, _ in self._walk(begin, end):
            for group in self._groups[:groups].tolist():
                if group[kernel.GROUP_COUNT]:
                    topic = group[kernel.GROUP_TOPIC]
                    name = bytes(file.view[topic : topic + group[kernel.GROUP_TOPIC_LENGTH]])
                    yield name, group[kernel.GROUP_QUEUE_ID], group[kernel.GROUP_NEXT_QUEUE_OFFSET]

    def find_hash(self, begin: int, end: int, key_hash: int) -> Iterator[int]:
        """Where in [begin, end) records stand that have a key of this hash; nothing is dispatched by this."""
        for _, _, count in self._walk(begin, end):
            keys = self._keys[:count]
            yield from keys[keys[:, KEY_HASH] == key_hash, KEY_PHYSICAL_OFFSET].tolist()

    def _walk(self, begin: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
        """Slice by slice: the file, and how many groups and keys have been found."""
        while begin < end:
            file = self._log.file_at(begin)
            stop = min(end - file.base, file.size_bytes)
            position, status, rows, groups, keys, _ = kernel.dispatch_records(
                file.array, begin - file.base, stop, file.base, self.is_recovering and self.checks_records,
                self._delays_ms, self._rows, self._groups, self._buckets, self._units, self._keys,
            )  # fmt: skip
            yield file, groups, keys
            if rows:
                begin = file.base + position
            else:
                following = self._beyond(file, position, stop, status).position
                if following == begin:
                    return
                begin = following

    def _beyond(self, file: MappedFile, start: int, stop: int, status: int) -> Step:
        """Go on after no record was found at `start`."""
        if status == kernel.AT_BLANK:
            return Step(file.end, -1, 0)
        if status in (walk.NO_ROOM, walk.BEYOND_END):
            if not self.is_recovering and start + self._slice_bytes >= stop:
                return Step(file.base + start, -1, 0)  # only half here yet: replicas get bytes, not records
            size = walk.check_record_at(file.array, start, stop, file.base, False)
            if size > 0:
                return self._large_record(file, start, size)
        following = int(resync.next_record(file.array, start + 1, stop, file.size_bytes, file.base))
        following = int(resync.closing_blank(file.array, start + 1, following, file.size_bytes))
        return Step(file.base + following, -1, 0)

    def _large_record(self, file: MappedFile, start: int, size: int) -> Step:
        """Dispatch a record that is larger than a slice."""
        slice_bytes, self._slice_bytes = self._slice_bytes, size
        try:
            return self.step(file.base + start, file.base + start + size)
        finally:
            self._slice_bytes = slice_bytes

    def _put_groups(self, file: MappedFile, count: int, arrivals: list[Arrival] | None) -> None:
        # A queue has one group, so those that can wait are put together, whatever came between them.
        may_wait = self._queues.files.descriptors.is_full
        waiting: list[_Waiting] = []
        for number, group in enumerate(self._groups[:count].tolist()):
            units = group[kernel.GROUP_COUNT]
            if not units:  # transactions that stand in no queue
                continue
            topic = group[kernel.GROUP_TOPIC]
            name = bytes(file.view[topic : topic + group[kernel.GROUP_TOPIC_LENGTH]])
            queue = self._queues.get_by_bytes(name, group[kernel.GROUP_QUEUE_ID])
            place = group[kernel.GROUP_FIRST_UNIT] * UNIT_BYTES
            unit_bytes = self._unit_bytes[place : place + units * UNIT_BYTES]
            end = group[kernel.GROUP_END_PHYSICAL_OFFSET]
            if (
                group[kernel.GROUP_IN_ORDER]
                and group[kernel.GROUP_FIRST_QUEUE_OFFSET] == queue.next_offset
                and group[kernel.GROUP_FIRST_PHYSICAL_OFFSET] >= queue.end_physical_offset
            ):
                if may_wait and queue.has_file_for(units):
                    waiting.append((number, queue, unit_bytes, end))
                    continue
                queue.append_units(unit_bytes, end)
            else:
                self._put_out_of_line(queue, file, group, unit_bytes)
            if arrivals is not None:
                arrivals.append(Arrival(queue.topic, queue.queue_id, queue.next_offset, bytes(unit_bytes)))
        if waiting:
            self._put_together(file, waiting, arrivals)

    def _put_together(
        self, file: MappedFile, waiting: list[_Waiting], arrivals: list[Arrival] | None
    ) -> None:
        """Append to queues whose files need not stay open."""
        written = self._write_together(file, waiting) if len(waiting) >= _TOGETHER_MIN else 0
        for place, (_, queue, unit_bytes, end) in enumerate(waiting):
            if place < written:
                queue.take_written(unit_bytes, end)
            else:  # also what has just failed: this tells why
                queue.append_units(unit_bytes, end)
            if arrivals is not None:
                arrivals.append(Arrival(queue.topic, queue.queue_id, queue.next_offset, bytes(unit_bytes)))

    def _write_together(self, file: MappedFile, waiting: list[_Waiting]) -> int:
        """How many of these have been written before one could not be. Raises OSError."""
        numbers = np.array([each[0] for each in waiting])
        directory = os.open(self._queues.root, os.O_PATH)
        try:
            return int(
                unit_files.write_units(
                    directory, self._queues.files.file_bytes, file.array, self._groups, numbers, self._units
                )
            )
        finally:
            os.close(directory)

    def _put_out_of_line(
        self, queue: ConsumeQueue, file: MappedFile, group: list[int], units: memoryview
    ) -> None:
        """Put units that do not simply follow (store format 3.2): again, after a gap, or at an old queue's
        start.
        """
        first = group[kernel.GROUP_FIRST_QUEUE_OFFSET]
        physical_offset = group[kernel.GROUP_FIRST_PHYSICAL_OFFSET]
        end = group[kernel.GROUP_END_PHYSICAL_OFFSET]
        is_new = physical_offset >= queue.end_physical_offset > 0
        if 0 <= first < queue.first_offset and not is_new:
            queue.start_again(first)  # its beginning is lost: what stands in the log belongs into it
        count = len(units) // UNIT_BYTES
        if not group[kernel.GROUP_IN_ORDER]:
            self._put_one_by_one(queue, file, units)
        elif first > queue.next_offset:
            if self._close_gap(queue, first, physical_offset, count):
                queue.append_units(units, end)
        elif first == 0 and physical_offset >= queue.end_physical_offset:
            queue.start_again(0)
            queue.append_units(units, end)
        elif self._is_there(queue, first, units):
            there = (queue.next_offset - first) * UNIT_BYTES
            if there < len(units):
                queue.append_units(units[there:], end)
        else:
            self._put_one_by_one(queue, file, units)

    def _put_one_by_one(self, queue: ConsumeQueue, file: MappedFile, units: memoryview) -> None:
        places = [UNIT.unpack(units[at : at + UNIT_BYTES]) for at in range(0, len(units), UNIT_BYTES)]
        offsets = [
            int.from_bytes(file.view[at - file.base + 20 : at - file.base + 28], "big", signed=True)
            for at, _, _ in places
        ]
        for number, (queue_offset, (physical_offset, size, _)) in enumerate(
            zip(offsets, places, strict=True)
        ):
            unit = units[number * UNIT_BYTES : (number + 1) * UNIT_BYTES]
            if queue_offset == 0 < queue.next_offset and physical_offset >= queue.end_physical_offset:
                if queue.next_offset + 1 in offsets[number + 1 : number + 2]:
                    self._refuse(queue, queue_offset, physical_offset)  # the next one knows of no new start
                    continue
                queue.start_again(0)
            if queue_offset < queue.next_offset:
                self._mend(queue, queue_offset, unit)
                if queue_offset < queue.next_offset:
                    continue
            if queue_offset > queue.next_offset and not self._close_gap(
                queue, queue_offset, physical_offset, 1
            ):
                continue
            queue.append_units(unit, physical_offset + size)

    def _close_gap(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, agreeing: int) -> bool:
        """Hold the places before `queue_offset`, of records that are gone. False when it cannot be right.

        Every record that is gone had its place in the log. `agreeing` records in a row may be right yet.
        """
        if queue.next_offset == queue.first_offset:
            queue.start_at(queue_offset)
            return True
        gap = queue_offset - queue.next_offset
        room = (physical_offset - queue.end_physical_offset) // MIN_RECORD_BYTES
        if gap > room and (agreeing == 1 or gap > _GAP_MAX):
            self._refuse(queue, queue_offset, physical_offset)
            return False
        _log.warning(
            "consume_queue_gap",
            topic=queue.topic,
            queue_id=queue.queue_id,
            from_offset=queue.next_offset,
            to_offset=queue_offset,
        )
        queue.fill_to(queue_offset)
        return True

    def _refuse(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> None:
        """A record's queue offset is damaged: no CRC covers it. The record stays out of its queue."""
        if len(self.refused) < _REFUSED_MAX:
            self.refused[physical_offset] = queue_offset
        _log.error(
            "queue_offset_impossible",
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=queue_offset,
            next_offset=queue.next_offset,
            position=physical_offset,
        )

    def _is_there(self, queue: ConsumeQueue, first: int, units: memoryview) -> bool:
        """Whether the queue has what it holds from `first` on, of these units, already."""
        count = min(queue.next_offset - first, len(units) // UNIT_BYTES)
        if not self.is_recovering:
            physical_offset, size, _ = UNIT.unpack(units[(count - 1) * UNIT_BYTES : count * UNIT_BYTES])
            return bool(physical_offset + size <= queue.end_physical_offset)
        done = 0
        while done < count:
            there = queue.read_units(first + done, count - done)
            if not there or there != units[done * UNIT_BYTES : done * UNIT_BYTES + len(there)]:
                return False
            done += len(there) // UNIT_BYTES
        return True

    def _mend(self, queue: ConsumeQueue, offset: int, unit: memoryview) -> None:
        """Cut the queue at a unit that is not what the log says, so that it is built again from there."""
        there = queue.read_units(offset, 1)
        if not self.is_recovering or there == unit:
            return
        physical_offset = UNIT.unpack(unit)[0]
        if offset < queue.first_offset or self._is_claimed(queue, offset, there, physical_offset):
            self._refuse(queue, offset, physical_offset)
            return
        _log.warning("consume_queue_mended", topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        end = 0
        if offset > queue.first_offset:
            before = queue.unit_at(offset - 1)
            end = 0 if before.is_filler else before.physical_offset + before.size
        queue.truncate_to(offset, end)

    def _is_claimed(self, queue: ConsumeQueue, offset: int, unit: bytes, before: int) -> bool:
        """Whether this unit leads to a record, stored before the one at `before`, that has its very place."""
        physical_offset, size, _ = UNIT.unpack(unit)
        if physical_offset >= before or (offset > queue.first_offset and queue.unit_at(offset - 1).is_filler):
            return False  # one that came after a gap it has made itself claims nothing
        try:
            message = decode_record(self._log.slice(physical_offset, size))
        except StoreError:
            return False
        place = (message.topic, message.queue_id, message.queue_offset, message.commit_log_offset)
        return place == (queue.topic, queue.queue_id, offset, physical_offset)

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
from store.consumequeue.unit import UNIT_BYTES
from store.kernels import resync, unit_files, walk
from store.kernels import units as kernel
from store.kernels.index import KEY_FIELDS, KEY_HASH, KEY_PHYSICAL_OFFSET
from store.out_of_line import OutOfLine

_ROWS = 16_384
_GROUPS = 128  # queues that one step writes to: 5 µs each, 10 where a file is to be opened
_TOGETHER_MIN = 4  # fewer files take no longer one by one
_KEYS = 65_536


class KeySink(Protocol):
    """Where the keys go: the index."""

    def put(self, keys: NDArray[np.int64], count: int) -> None:
        """Take the first `count` rows. Raises OSError."""


class Arrival:
    """A queue has got messages: its new end, and the tags codes among them for filters of waiting pulls."""

    __slots__ = ("_units", "max_offset", "queue_id", "topic")

    def __init__(self, queue: ConsumeQueue, units: bytes) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.max_offset = queue.next_offset
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
        self._out_of_line = OutOfLine(log)
        self.checks_records = True  # while it is recovering, with their CRC

    @property
    def is_recovering(self) -> bool:
        """Then bodies' CRCs are checked, and units that are there already are compared and mended."""
        return self._out_of_line.is_recovering

    @is_recovering.setter
    def is_recovering(self, is_recovering: bool) -> None:
        self._out_of_line.is_recovering = is_recovering

    @property
    def refused(self) -> dict[int, int]:
        """Where records stand whose queue offsets cannot be right, and these."""
        return self._out_of_line.refused

    def step(self, begin: int, end: int, arrivals: list[Arrival] | None = None) -> Step:
        """Dispatch up to one slice of [begin, end), which starts at a record; adds to `arrivals`.

        Stops before a record that is not whole yet. Raises OSError (a full disk), StoreError.
        """
        file = self._log.file_at(begin)
        start = begin - file.base
        stop = min(end - file.base, file.size_bytes)
        position, status, rows, groups, keys, timestamp = self._scan(
            file, start, min(stop, start + self._slice_bytes)
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
            position, status, rows, groups, keys, _ = self._scan(file, begin - file.base, stop)
            yield file, groups, keys
            if rows:
                begin = file.base + position
            else:
                following = self._beyond(file, position, stop, status).position
                if following == begin:
                    return
                begin = following

    def _scan(self, file: MappedFile, start: int, stop: int) -> tuple[int, int, int, int, int, int]:
        """Where it came to, and why no further; how many rows, groups and keys; the last storeTimestamp."""
        found: tuple[int, int, int, int, int, int] = kernel.dispatch_records(
            file.array, start, stop, file.base, self.is_recovering and self.checks_records, self._delays_ms,
            self._rows, self._groups, self._buckets, self._units, self._keys,
        )  # fmt: skip
        return found

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
                self._out_of_line.put(queue, file, group, unit_bytes)
            if arrivals is not None:
                arrivals.append(Arrival(queue, bytes(unit_bytes)))
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
                arrivals.append(Arrival(queue, bytes(unit_bytes)))

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

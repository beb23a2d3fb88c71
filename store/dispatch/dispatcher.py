"""The one dispatch (design law 3): from confirmed log bytes to consume queues and index.

Put, recovery, rebuild and replicas share it. It may be given again what it has had: units and keys that are
there already are skipped.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import LogFiles
from store.commitlog.mapped_file import MappedFile
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import UNIT_BYTES
from store.dispatch.out_of_line import OutOfLine
from store.dispatch.unit_writes import Arrival, Groups, UnitWrites, Waiting
from store.kernels import resync, walk
from store.kernels import units as kernel
from store.kernels.index import KEY_FIELDS, KEY_HASH, KEY_PHYSICAL_OFFSET
from store.kernels.properties import FOUND_FIELDS

_ROWS = 16_384
_GROUPS = 128  # queues that one step writes to: 5 µs each, 10 where a file is to be opened
_KEYS = 65_536


class KeySink(Protocol):
    """Where the keys go: the index."""

    def put(self, keys: NDArray[np.int64], count: int) -> None:
        """Take the first `count` rows. Raises OSError."""


class Step(NamedTuple):
    """How far one step came; place and storeTimestamp of the last record it saw, −1 and 0 for none."""

    position: int
    last_record: int
    timestamp: int


_NOTHING = Step(0, -1, 0)


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
        self._found = np.zeros(FOUND_FIELDS, dtype=np.int64)
        self._out_of_line = OutOfLine(log)
        self._writes = UnitWrites(queues)
        self._left = _NOTHING  # the step whose units have been left to another thread
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
        return self._step(begin, end, arrivals, may_leave=False)

    def start(self, begin: int, end: int, arrivals: list[Arrival] | None) -> Step | None:
        """As `step`; but None where units for many queues have been left to another thread: then nothing may
        be done to queues but to read them, and no step begun, before `finish` has ended this one.
        """
        step = self._step(begin, end, arrivals, may_leave=True)
        if not self._writes.is_under_way:
            return step
        self._left = step
        return None

    @property
    def is_under_way(self) -> bool:
        """Whether a step has been started and is to be finished."""
        return self._writes.is_under_way

    @property
    def has_written(self) -> bool:
        """Whether `finish` would not wait."""
        return self._writes.has_ended

    def finish(self, arrivals: list[Arrival] | None) -> Step:
        """End the step that has been started. Raises as `step`; then it is to be done again."""
        self._writes.end(arrivals)
        return self._left

    def on_written(self, callback: Callable[[], None]) -> None:
        """From now on call this, on a thread of ours, when a step can be finished without waiting."""
        self._writes.on_ended(callback)

    def close(self) -> None:
        """End the thread."""
        self._writes.close()

    def _step(self, begin: int, end: int, arrivals: list[Arrival] | None, *, may_leave: bool) -> Step:
        file = self._log.file_at(begin)
        start = begin - file.base
        stop = min(end - file.base, file.size_bytes)
        position, status, rows, groups, keys, timestamp = self._scan(
            file, start, min(stop, start + self._slice_bytes)
        )
        if rows:
            if status == kernel.AT_BLANK:
                position = file.size_bytes
            self._put_groups(file, groups, arrivals, may_leave=may_leave)
            self._put_keys(keys)
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
            self._rows, self._groups, self._buckets, self._units, self._keys, self._found,
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

    def _put_keys(self, count: int) -> None:
        if self._index is None or not count:
            return
        try:
            self._index.put(self._keys, count)
        except OSError:
            self._writes.end(None)  # the step has failed: units that are there are skipped the next time
            raise

    def _put_groups(
        self, file: MappedFile, count: int, arrivals: list[Arrival] | None, *, may_leave: bool
    ) -> None:
        """Put the units of a step's groups into their queues; some may be left under way."""
        # A queue has one group, so those that can wait are put together, whatever came between them.
        is_full = self._queues.files.descriptors.is_full
        waiting: list[Waiting] = []
        name, named_by = b"", -1
        columns = self._groups[:count, kernel.GROUP_TOPIC : kernel.GROUP_FIRST_UNIT + 1].T.tolist()
        for number, group in enumerate(zip(*columns, strict=True)):
            topic, topic_length, queue_id, units_count, first_offset, _, in_order, first, end, unit = group
            if not units_count:  # transactions that stand in no queue
                continue
            if topic != named_by:
                name, named_by = bytes(file.view[topic : topic + topic_length]), topic
            queue = self._queues.get_by_bytes(name, queue_id)
            place = unit * UNIT_BYTES
            size_bytes = units_count * UNIT_BYTES
            follows = in_order and first_offset == queue.next_offset and first >= queue.end_physical_offset
            if follows:
                is_new = may_leave and queue.begins_file_with(units_count)
                if is_new or (is_full and queue.has_file_for(units_count)):
                    waiting.append((number, queue, is_new, place, size_bytes, end))
                    continue
            units = self._unit_bytes[place : place + size_bytes]
            if follows:
                queue.append_units(units, end)
            else:
                self._out_of_line.put(queue, file, self._groups[number].tolist(), units)
            if arrivals is not None:
                arrivals.append(Arrival(queue, units))
        found = Groups(file.array, self._groups, self._units)
        if waiting and not (may_leave and self._writes.leave(waiting, found)):
            self._writes.write(waiting, found, arrivals)

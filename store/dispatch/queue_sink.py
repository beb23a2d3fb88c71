"""ConsumeQueueSink: the dispatch sink that writes consume-queue units.

Units for many queues whose files are new or not open are written by another thread, while the store's own
continues. They are counted in on the store's thread, and not before: until then nothing may be done to queues
but to read them, and they end where they ended.

    accept ──→ all units written
         └───→ is_under_way: another thread writes ──→ finish: counted in

A unit that the other thread could not write is written again in `finish`, which raises the reason.
"""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import LogFiles
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import UNIT_BYTES
from store.dispatch.out_of_line import OutOfLine
from store.dispatch.sink import RecordBatch
from store.jobs import Lane
from store.kernels import unit_files
from store.kernels import units as kernel

_TOGETHER_MIN = 4  # fewer files take no longer one by one
_LEFT_MIN = 16  # with fewer, to hand them over takes as long


class Arrival:
    """New messages of an awaited queue: its new end, and their tags codes for filters of waiting pulls."""

    __slots__ = ("_tags_codes", "_units", "max_offset", "queue_id", "topic")

    def __init__(self, queue: ConsumeQueue, units: memoryview) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.max_offset = queue.next_offset
        self._tags_codes: frozenset[int] | None = None
        self._units = bytes(units)

    @property
    def tags_codes(self) -> frozenset[int]:
        """The different tags codes of the new messages."""
        if self._tags_codes is None:
            count = len(self._units) // UNIT_BYTES
            codes = np.ndarray(count, np.dtype(">i8"), self._units, offset=12, strides=(UNIT_BYTES,))
            self._tags_codes = frozenset(codes.tolist())
        return self._tags_codes


Waiting: TypeAlias = tuple[int, ConsumeQueue, bool, int, int, int]
"""A group, whose units follow what its queue has and go into one file: its number, the queue, whether the
file is to be made, place and size of the units in bytes, and where the last one's record ends.

A queue has one group at most. A plain tuple, as tens of thousands are made a second.
"""


class _Found(NamedTuple):
    """The parts of a batch that a write of many queues needs."""

    log: NDArray[np.uint8]
    groups: NDArray[np.int64]
    units: NDArray[np.uint8]


class _Left(NamedTuple):
    """Units that were left to the other thread; `written` is how many groups it has written."""

    waiting: Sequence[Waiting]
    units: memoryview
    written: Future[int]


class ConsumeQueueSink:
    """Puts units into the queues of one store."""

    def __init__(self, log: LogFiles, queues: ConsumeQueueTable, lane: Lane | None = None) -> None:
        """Without a `lane` no units are left to another thread."""
        self.awaited: Collection[tuple[str, int]] = ()
        """The queues, (topic, queue id), whose new messages become arrivals."""
        self._queues = queues
        self._out_of_line = OutOfLine(log)
        self._arrivals: list[Arrival] = []
        self._lane = lane
        self._left: _Left | None = None

    @property
    def refused(self) -> dict[int, int]:
        """The offsets of records whose queue offsets cannot be right, and these."""
        return self._out_of_line.refused

    @property
    def missing_from(self) -> int | None:
        """None: recovery compares each queue with what the last checkpoint noted of it."""
        return None

    def rewind(self, offset: int) -> None:
        """Drop the units of records at or after `offset`. Raises OSError, StoreError."""
        for queue in self._queues:
            queue.truncate_after(offset)

    def take_arrivals(self) -> list[Arrival]:
        """Return the arrivals since the last call."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def accept(self, batch: RecordBatch) -> None:
        """Put the units of a batch into their queues, or leave some under way. Raises OSError, StoreError."""
        # A queue has one group, so those that can wait are put together, whatever came between them.
        is_full = self._queues.files.descriptors.is_full
        waiting: list[Waiting] = []
        all_units = batch.units.data
        name, named_by = b"", -1
        columns = batch.groups[:, kernel.GROUP_TOPIC : kernel.GROUP_FIRST_UNIT + 1].T.tolist()
        for number, group in enumerate(zip(*columns, strict=True)):
            topic, topic_length, queue_id, units_count, first_offset, _, in_order, first, end, unit = group
            if not units_count:  # transactions that stand in no queue
                continue
            if topic != named_by:
                name, named_by = bytes(batch.file.view[topic : topic + topic_length]), topic
            queue = self._queues.get_by_bytes(name, queue_id)
            place = unit * UNIT_BYTES
            size_bytes = units_count * UNIT_BYTES
            follows = in_order and first_offset == queue.next_offset and first >= queue.end_physical_offset
            if follows:
                is_new = not batch.is_recovery and queue.begins_file_with(units_count)
                if is_new or (is_full and queue.has_file_for(units_count)):
                    waiting.append((number, queue, is_new, place, size_bytes, end))
                    continue
            units = all_units[place : place + size_bytes]
            if follows:
                queue.append_units(units, end)
            else:
                self._out_of_line.put(queue, batch, batch.groups[number].tolist(), units)
            self._arrived(queue, units)
        if self._lane is not None and len(waiting) >= _LEFT_MIN and not batch.is_recovery:
            number, _, _, place, size_bytes, _ = waiting[-1]
            copied = batch.units[: place + size_bytes].copy()
            found = _Found(batch.file.array, batch.groups[: number + 1].copy(), copied)
            written = self._lane.submit(partial(_write_units, self._queues, found, waiting))
            self._left = _Left(waiting, copied.data, written)
        elif waiting:
            found = _Found(batch.file.array, batch.groups, batch.units)
            count = _write_units(self._queues, found, waiting) if len(waiting) >= _TOGETHER_MIN else 0
            self._count_in(waiting, all_units, count)

    def _count_in(self, waiting: Sequence[Waiting], all_units: memoryview, written: int) -> None:
        for order, (_, queue, is_new, place, size_bytes, end) in enumerate(waiting):
            units = all_units[place : place + size_bytes]
            if order < written:
                queue.take_written(units, end, is_new=is_new)
            else:
                queue.append_units(units, end)
            self._arrived(queue, units)

    def _arrived(self, queue: ConsumeQueue, units: memoryview) -> None:
        if (queue.topic, queue.queue_id) in self.awaited:
            self._arrivals.append(Arrival(queue, units))

    # ---- units left to the other thread --------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether units of the last batch are still to be counted in by `finish`."""
        return self._left is not None

    @property
    def can_finish(self) -> bool:
        """Whether `finish` would not wait."""
        return self._left is not None and self._left.written.done()

    def finish(self) -> None:
        """Wait for the units under way, and count them in. Raises OSError; then the batch has failed."""
        left, self._left = self._left, None
        if left is not None:
            has_failed = left.written.exception() is not None
            self._count_in(left.waiting, left.units, 0 if has_failed else left.written.result())


def _write_units(queues: ConsumeQueueTable, found: _Found, waiting: Sequence[Waiting]) -> int:
    """Write the units of some groups; return how many came before the first that could not be written.

    Raises OSError.
    """
    numbers, _, is_new, _, _, _ = zip(*waiting, strict=True)
    log, groups, units = found
    directory = os.open(queues.root, os.O_PATH)
    try:
        return int(
            unit_files.write_units(
                directory, queues.files.file_bytes, log, groups, np.array(numbers), np.array(is_new), units
            )
        )
    finally:
        os.close(directory)

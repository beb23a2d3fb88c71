"""ConsumeQueueSink: the dispatch sink that writes consume queue units.

If a batch has units for many queues whose files are new or not open, another thread writes these units in one
bulk write while the store's thread continues. The store's thread then updates the offsets and CRCs of the
queues in `finish`. Until then the queues may be read but not changed, and their `next_offset` does not
change.

    accept ──→ all units are written
         └───→ is_under_way: another thread writes units ──→ finish: the queues are updated

Units that the other thread could not write are written again in `finish`, which raises the error if that
fails. A group contains the units of one queue in one batch.
"""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import LogFiles
from store.common.background import Lane
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import UNIT_BYTES
from store.dispatch.out_of_order import OutOfOrderUnits
from store.dispatch.queue_changes import META_TOPIC_BYTES, TopicDeletion, changes_in
from store.dispatch.sink import RecordBatch
from store.kernels import unit_files
from store.kernels import units as kernel

_BULK_WRITE_MIN = 4  # a bulk write of fewer files is not faster than single writes
_OTHER_THREAD_MIN = 16  # for fewer files, the hand-over to another thread costs more than the writes


class Arrival:
    """New messages of a queue for which a client is waiting.

    `max_offset` is the new end of the queue. The tags codes of the messages are needed by the filters of held
    pulls.
    """

    __slots__ = ("_tags_codes", "_units", "max_offset", "queue_id", "topic")

    def __init__(self, queue: ConsumeQueue, units: memoryview) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.max_offset = queue.next_offset
        self._tags_codes: frozenset[int] | None = None
        self._units = bytes(units)

    @property
    def message_count(self) -> int:
        """The number of new messages."""
        return len(self._units) // UNIT_BYTES

    @property
    def tags_codes(self) -> frozenset[int]:
        """The distinct tags codes of the new messages."""
        if self._tags_codes is None:
            count = len(self._units) // UNIT_BYTES
            codes = np.ndarray(count, np.dtype(">i8"), self._units, offset=12, strides=(UNIT_BYTES,))
            self._tags_codes = frozenset(codes.tolist())
        return self._tags_codes


GroupWrite: TypeAlias = tuple[int, ConsumeQueue, bool, int, int, int]
"""The units of one queue (a group) that can be part of a bulk write, as a tuple.

The units follow the last unit of the queue and fit into one file. The fields are: index of the group in the
batch, queue, whether the file must be created, byte position and size of the units in the batch, and the
CommitLog offset at which the last unit's record ends. A batch has at most one group per queue. It is a plain
tuple because tens of thousands are created per second.
"""


class _BatchArrays(NamedTuple):
    """The arrays of a record batch that a bulk write needs."""

    log: NDArray[np.uint8]
    groups: NDArray[np.int64]
    units: NDArray[np.uint8]


class _PendingWrite(NamedTuple):
    """A bulk write that the other thread executes.

    `written` resolves to the number of groups whose units were written.
    """

    writes: Sequence[GroupWrite]
    units: memoryview
    written: Future[int]


class ConsumeQueueSink:
    """Dispatch sink that writes units into the consume queues of one store."""

    def __init__(self, log: LogFiles, queues: ConsumeQueueTable, lane: Lane | None = None) -> None:
        """Create the sink; bulk writes run in a thread of `lane`, or on the store's thread if it is None."""
        self.awaited: Collection[str | tuple[str, int]] = ()
        """The queues, as (topic, queue id), and topics whose new messages are reported as arrivals."""
        self._queues = queues
        self._out_of_order = OutOfOrderUnits(log)
        self._arrivals: list[Arrival] = []
        self._lane = lane
        self._pending: _PendingWrite | None = None

    @property
    def refused(self) -> dict[int, int]:
        """Maps the CommitLog offset of each record with an impossible queue offset to this queue offset."""
        return self._out_of_order.refused

    @property
    def missing_from(self) -> int | None:
        """Always None: recovery compares each queue with its snapshot in the last checkpoint instead."""
        return None

    def rewind(self, offset: int) -> None:
        """Drop the units of records at or after `offset`. Raises OSError, StoreError."""
        for queue in self._queues:
            queue.truncate_after(offset)

    def take_arrivals(self) -> list[Arrival]:
        """Return the arrivals (new messages of awaited queues) since the last call."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def accept(self, batch: RecordBatch) -> None:
        """Write the units of a batch into their queues, or let the other thread write some of them.

        Raises OSError, StoreError.
        """
        # A queue has at most one group per batch, so the groups can be written in any order.
        is_full = self._queues.files.descriptors.is_full
        writes: list[GroupWrite] = []
        meta_groups: list[int] = []
        all_units = batch.units.data
        name, named_by = b"", -1
        columns = batch.groups[:, kernel.GROUP_TOPIC : kernel.GROUP_FIRST_UNIT + 1].T.tolist()
        for number, group in enumerate(zip(*columns, strict=True)):
            topic, topic_length, queue_id, units_count, first_offset, _, in_order, first, end, unit = group
            if not units_count:  # prepared or rolled back transactions are in no queue
                continue
            if topic != named_by:
                name, named_by = bytes(batch.file.view[topic : topic + topic_length]), topic
                if name == META_TOPIC_BYTES:
                    meta_groups.append(number)
            queue = self._queues.get_by_bytes(name, queue_id)
            place = unit * UNIT_BYTES
            size_bytes = units_count * UNIT_BYTES
            follows = in_order and first_offset == queue.next_offset and first >= queue.end_physical_offset
            if follows:
                is_new = not batch.is_recovery and queue.begins_file_with(units_count)
                if is_new or (is_full and queue.has_file_for(units_count)):
                    writes.append((number, queue, is_new, place, size_bytes, end))
                    continue
            units = all_units[place : place + size_bytes]
            if follows:
                queue.append_units(units, end)
            else:
                self._out_of_order.put(queue, batch, batch.groups[number].tolist(), units)
            self._add_arrival(queue, units)
        may_wait = self._lane is not None and not batch.is_recovery and not meta_groups
        if self._lane is not None and may_wait and len(writes) >= _OTHER_THREAD_MIN:
            number, _, _, place, size_bytes, _ = writes[-1]
            copied = batch.units[: place + size_bytes].copy()
            arrays = _BatchArrays(batch.file.array, batch.groups[: number + 1].copy(), copied)
            written = self._lane.submit(partial(_write_units, self._queues, arrays, writes))
            self._pending = _PendingWrite(writes, copied.data, written)
        elif writes:
            arrays = _BatchArrays(batch.file.array, batch.groups, batch.units)
            count = _write_units(self._queues, arrays, writes) if len(writes) >= _BULK_WRITE_MIN else 0
            self._count_in(writes, all_units, count)
        for change in changes_in(batch, meta_groups) if meta_groups else ():
            if isinstance(change, TopicDeletion):
                self._queues.delete_before(*change)
            else:
                self._queues.reserve_before(*change)

    def _count_in(self, writes: Sequence[GroupWrite], all_units: memoryview, written: int) -> None:
        for order, (_, queue, is_new, place, size_bytes, end) in enumerate(writes):
            units = all_units[place : place + size_bytes]
            if order < written:
                queue.count_written(units, end, is_new=is_new)
            else:
                queue.append_units(units, end)
            self._add_arrival(queue, units)

    def _add_arrival(self, queue: ConsumeQueue, units: memoryview) -> None:
        if (queue.topic, queue.queue_id) in self.awaited or queue.topic in self.awaited:
            self._arrivals.append(Arrival(queue, units))

    # ---- units that the other thread writes ----------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """True from the start of a write in the background thread until `finish` has updated the queues."""
        return self._pending is not None

    @property
    def can_finish(self) -> bool:
        """True if a bulk write is under way and `finish` would return without waiting."""
        return self._pending is not None and self._pending.written.done()

    def finish(self) -> None:
        """Wait for the bulk write of the other thread, and update the queues whose units were written.

        Raises OSError if units cannot be written; the step must then be repeated.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            has_failed = pending.written.exception() is not None
            self._count_in(pending.writes, pending.units, 0 if has_failed else pending.written.result())


def _write_units(queues: ConsumeQueueTable, arrays: _BatchArrays, writes: Sequence[GroupWrite]) -> int:
    """Write the units of the groups `writes` in one bulk write.

    Returns how many groups were written before the first failure. Raises OSError.
    """
    numbers, _, is_new, _, _, _ = zip(*writes, strict=True)
    log, groups, units = arrays
    directory = os.open(queues.root, os.O_PATH)
    try:
        return int(
            unit_files.write_units(
                directory, queues.files.file_bytes, log, groups, np.array(numbers), np.array(is_new), units
            )
        )
    finally:
        os.close(directory)

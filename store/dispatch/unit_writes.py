"""UnitWrites: units for many queues whose files need not stay open, written together – at once, or by another
thread while the store's own goes on.

    write                               they are written, and counted in
    leave ──→ another thread ──→ end    they are counted in here, and not before

What has been left is not in its queues yet: to whoever reads, notes or cleans them they end where they ended.
Of failures the writing itself tells nothing: what it has not done is done again here, one by one, and tells.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import UNIT_BYTES
from store.disk.background import Background
from store.kernels import unit_files

_TOGETHER_MIN = 4  # fewer files take no longer one by one
_LEFT_MIN = 16  # with fewer, to hand them over takes as long


class Arrival:
    """A queue has got messages: its new end, and the tags codes among them for filters of waiting pulls."""

    __slots__ = ("_tags_codes", "_units", "max_offset", "queue_id", "topic")

    def __init__(self, queue: ConsumeQueue, units: memoryview) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.max_offset = queue.next_offset
        self._tags_codes: frozenset[int] | None = None
        self._units = bytes(units)  # as they came: hardly anybody asks, and there may be thousands in a turn

    @property
    def tags_codes(self) -> frozenset[int]:
        """The different tags codes of the new messages."""
        if self._tags_codes is None:
            count = len(self._units) // UNIT_BYTES
            codes = np.ndarray(count, np.dtype(">i8"), self._units, offset=12, strides=(UNIT_BYTES,))
            self._tags_codes = frozenset(codes.tolist())
        return self._tags_codes


class Groups(NamedTuple):
    """What a scan of the log has found: its file's bytes, the groups as in `kernels.units`, their units."""

    log: NDArray[np.uint8]
    groups: NDArray[np.int64]
    units: NDArray[np.uint8]


Waiting: TypeAlias = tuple[int, ConsumeQueue, bool, int, int, int]
"""A group, whose units follow what its queue has and go into one file: its number, the queue, whether the
file is to be made, place and size of the units in bytes, and where the last one's record ends.

A queue has one group at most. A plain tuple, as tens of thousands are made a second.
"""


class UnitWriteJob:
    """Writes the units of some groups; `written` is how many came before the first that could not be."""

    def __init__(self, queues: ConsumeQueueTable, found: Groups, waiting: Sequence[Waiting]) -> None:
        self.written = 0
        self.ended = threading.Event()
        self._root = queues.root
        self._file_bytes = queues.files.file_bytes
        self._found: Groups | None = found
        numbers, _, is_new, _, _, _ = zip(*waiting, strict=True)
        self._chosen = np.array(numbers)
        self._is_new = np.array(is_new)

    def run(self) -> None:
        """Do it. Raises OSError."""
        try:
            self._write()
        finally:
            self._found = None  # it keeps a file of the log, which may have to go (design law 10)
            self.ended.set()

    def _write(self) -> None:
        assert self._found is not None
        log, groups, units = self._found
        directory = os.open(self._root, os.O_PATH)
        try:
            self.written = int(
                unit_files.write_units(
                    directory, self._file_bytes, log, groups, self._chosen, self._is_new, units
                )
            )
        finally:
            os.close(directory)


class UnitWrites:
    """The writes of one store's dispatch. Belongs to the store's thread."""

    def __init__(self, queues: ConsumeQueueTable) -> None:
        self._queues = queues
        self._job: UnitWriteJob | None = None  # what was left, for …
        self._waiting: Sequence[Waiting] = ()  # … these, with …
        self._units = memoryview(b"")  # … these units
        self._background = Background()

    def on_ended(self, callback: Callable[[], None]) -> None:
        """From now on call this, on a thread of ours, when what was left has been written."""
        self._background.on_ended = callback

    @property
    def is_under_way(self) -> bool:
        """Whether something has been left and not been counted in yet."""
        return self._job is not None

    @property
    def has_ended(self) -> bool:
        """Whether `end` would not wait."""
        return self._job is None or self._job.ended.is_set()

    def write(self, waiting: Sequence[Waiting], found: Groups, arrivals: list[Arrival] | None) -> None:
        """Write what waits, and count it in. Raises OSError; those before that are in then."""
        written = 0
        if len(waiting) >= _TOGETHER_MIN:
            job = UnitWriteJob(self._queues, found, waiting)
            job.run()
            written = job.written
        _count_in(waiting, written, found.units.data, arrivals)

    def leave(self, waiting: Sequence[Waiting], found: Groups) -> bool:
        """Leave what waits to another thread; False if that is too little. Nothing may be under way."""
        if len(waiting) < _LEFT_MIN:
            return False
        number, _, _, place, size_bytes, _ = waiting[-1]
        units = found.units[: place + size_bytes].copy()  # the next scan needs the room
        self._waiting, self._units = waiting, units.data
        groups = found.groups[: number + 1].copy()
        self._job = UnitWriteJob(self._queues, Groups(found.log, groups, units), waiting)
        self._background.collect()
        self._background.submit(self._job)
        return True

    def end(self, arrivals: list[Arrival] | None) -> None:
        """Wait for what was left, and count it in. Raises OSError as `write`."""
        job, self._job = self._job, None
        waiting, self._waiting = self._waiting, ()
        if job is not None:
            job.ended.wait()
            _count_in(waiting, job.written, self._units, arrivals)

    def close(self) -> None:
        """End the thread."""
        self._background.finish()


def _count_in(
    waiting: Sequence[Waiting], written: int, units: memoryview, arrivals: list[Arrival] | None
) -> None:
    for order, (_, queue, is_new, place, size_bytes, end) in enumerate(waiting):
        part = units[place : place + size_bytes]
        if order < written:
            queue.take_written(part, end, is_new=is_new)
        else:  # also what has just failed: this tells why
            queue.append_units(part, end)
        if arrivals is not None:
            arrivals.append(Arrival(queue, part))

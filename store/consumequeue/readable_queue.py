"""The state of a consume queue and its reads: by queue offset, and by bisection.

The unit of queue offset n (`store.consumequeue.unit`) is at byte 20 n, counted over all files of the queue.
The files are sparse, have a fixed size, and are named by the byte position of their first unit. Zeros follow
the last unit. Filler units reserve the queue offsets of records that no longer exist.
"""

from collections.abc import Callable

import numpy as np

from store.consumequeue.queue_files import QueueFiles
from store.consumequeue.unit import FILLER, UNIT, UNIT_BYTES, Unit
from store.store_errors import StoreError

_UNIT_ROW = np.dtype(f"V{UNIT_BYTES}")
_FILLER_ROW = np.frombuffer(FILLER, dtype=_UNIT_ROW)
_READ_UNITS_MAX = 65_536


class ReadableQueue:
    """The units of one queue.

    `next_offset` is the queue offset of the next unit to be dispatched. `assigned_offset` is the queue offset
    that the next appended message gets; it is larger while appended messages wait for dispatch.
    """

    __slots__ = (
        "_directory",
        "_files",
        "_files_end",
        "assigned_index",
        "end_physical_offset",
        "first_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        """Create a queue without units. `directory` is the path of the queue's files.

        The directory is created together with the first file.
        """
        self.topic = topic
        self.queue_id = queue_id
        self._directory = directory
        self._files = files
        self.first_offset = 0  # the first unit of the first file
        self.min_offset = 0  # the first unit whose record is still in the log
        self.next_offset = 0
        self.assigned_index = files.assigned.add()
        self.end_physical_offset = 0  # the end of the last unit's record
        self._files_end = 0  # files exist for offsets below this

    @property
    def assigned_offset(self) -> int:
        """The queue offset that the next appended message gets."""
        return self._files.assigned.view[self.assigned_index]

    @assigned_offset.setter
    def assigned_offset(self, offset: int) -> None:
        self._files.assigned.view[self.assigned_index] = offset

    @property
    def directory(self) -> str:
        """Path of the directory with the queue's files.

        It is a string to save memory, because a store may have 20,000 queues.
        """
        return self._directory

    @property
    def units_per_file(self) -> int:
        """Number of units in one file."""
        return self._files.units_per_file

    def file_offsets(self) -> range:
        """Return the queue offset at which each file begins."""
        return range(self.first_offset, self._files_end, self.units_per_file)

    def file_path(self, offset: int) -> str:
        """Return the path of the file that contains the unit of queue offset `offset`."""
        place = offset * UNIT_BYTES
        return f"{self._directory}/{place - place % self._files.file_bytes:020d}"

    def read_units(self, offset: int, count: int) -> bytes:
        """Return up to `count` units from queue offset `offset` on, as bytes, from one file only.

        Raises StoreError if the file cannot be read, and NotResident if the read would have to wait for the
        disk inside `resident_only`.
        """
        per_file = self.units_per_file
        count = min(count, self.next_offset - offset, per_file - offset % per_file)
        if count <= 0 or offset < self.first_offset:
            return b""
        wanted_bytes = count * UNIT_BYTES
        place = offset * UNIT_BYTES % self._files.file_bytes
        path = self.file_path(offset)
        try:
            units = self._files.residency.pread(self._file(offset), wanted_bytes, place, path)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path) from error
        if len(units) != wanted_bytes:
            raise StoreError(
                "the queue file was truncated while the store was open: restart to rebuild it",
                path,
                len(units),
            )
        return units

    def unit_at(self, offset: int) -> Unit:
        """Return the unit at `offset`. Raises StoreError if the queue does not have it."""
        units = self.read_units(offset, 1)
        if not units:
            reason = f"has no offset {offset}: its offsets are [{self.first_offset}, {self.next_offset})"
            raise StoreError(f"queue {self.topic}-{self.queue_id} {reason}", self._directory)
        return Unit(*UNIT.unpack(units))

    def skip_fillers(self, offset: int, stop: int) -> int:
        """Return the first queue offset in [offset, stop) whose unit is not a filler.

        Returns `stop` if all units are fillers. Raises the errors of `read_units`.
        """
        count = 1
        while offset < stop:
            units = self.read_units(offset, min(count, stop - offset))
            rows = np.frombuffer(units, dtype=_UNIT_ROW)
            real = np.flatnonzero(rows != _FILLER_ROW)
            if len(real) or not units:
                return offset + int(real[0]) if len(real) else offset
            offset += len(rows)
            count = min(2 * count, _READ_UNITS_MAX)
        return stop

    def bisect(self, low: int, high: int, is_at_or_after: Callable[[Unit], bool]) -> int:
        """Search the queue offsets [low, high) for the first unit for which `is_at_or_after` returns True.

        `is_at_or_after` must return False for all units before that unit, and True for all units after it.
        Fillers are skipped. Returns `high` if there is no such unit. Raises the errors of `read_units`.
        """
        stop = high
        while low < high:
            middle = (low + high) // 2
            real = self.skip_fillers(middle, high)
            if real == high or is_at_or_after(self.unit_at(real)):
                high = middle
            else:
                low = real + 1
        return self.skip_fillers(low, stop)

    def _file(self, offset: int) -> int:
        return self._files.descriptors.get(self.file_path(offset))

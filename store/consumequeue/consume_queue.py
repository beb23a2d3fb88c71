"""ConsumeQueue: maps the offsets of one queue to positions in the CommitLog.

The unit of queue offset n (`store.consumequeue.unit`) is at byte 20 n, counted over all files of the queue.
The files are sparse, have a fixed size, and are named by the byte position of their first unit. Zeros follow
the last unit. Filler units reserve the queue offsets of records that no longer exist.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.consumequeue.unit import FILLER, UNIT, UNIT_BYTES, Unit
from store.disk.files import Descriptors, settled_time_ns, zero_data
from store.disk.files import write_all as write_bytes
from store.disk.residency import Residency
from store.message.crc import running_crc
from store.store_errors import StoreError

_UNIT_ROW = np.dtype(f"V{UNIT_BYTES}")
_FILLER_ROW = np.frombuffer(FILLER, dtype=_UNIT_ROW)
_READ_UNITS_MAX = 65_536


class AssignedOffsets:
    """The queue offset that the next appended message of each queue gets, in one array for compiled code."""

    def __init__(self) -> None:
        self.offsets = np.zeros(256, np.int64)
        self.view = self.offsets.data
        self.version = 0
        """Changes when a queue was removed: its index is not used again."""
        self._count = 0

    def add(self) -> int:
        """Return the index of a new queue."""
        index = self._count
        if index == len(self.offsets):
            self.offsets = np.concatenate((self.offsets, np.zeros(index, np.int64)))
            self.view = self.offsets.data
        self._count += 1
        return index


class QueueFiles(NamedTuple):
    """The file size, open descriptors and other objects that all consume queues of a store share.

    `changed` lists the queues that changed since the last checkpoint; each queue occurs once.
    """

    file_bytes: int
    units_per_file: int
    descriptors: Descriptors
    changed: "list[ConsumeQueue]"
    residency: Residency
    assigned: AssignedOffsets


class QueueSnapshot(NamedTuple):
    """State of a queue as stored in a checkpoint.

    The queue has units for the queue offsets [first_offset, next_offset). `min_offset` is the first queue
    offset whose record is still in the CommitLog. The record of the last unit ends at the CommitLog offset
    `end_physical_offset`. `crcs` has the CRC of each file's units.
    """

    first_offset: int
    min_offset: int
    next_offset: int
    end_physical_offset: int
    crcs: list[int]
    times_ns: list[int]
    """Modification time of each file in nanoseconds.

    It is 0 if the file changed so recently that a later change could keep the same time (`settled_time_ns`).
    """


class ConsumeQueue:
    """The units of one queue.

    `next_offset` is the queue offset of the next unit to be dispatched. `assigned_offset` is the queue offset
    that the next appended message gets; it is larger while appended messages wait for dispatch.
    """

    __slots__ = (
        "_crcs",
        "_directory",
        "_dirty_from",
        "_files",
        "_files_end",
        "_times_ns",
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
        self._dirty_from = -1  # the first unit changed since the last snapshot; -1 if none
        self._crcs: list[int] = []  # CRC of the units of each file
        self._times_ns: list[int] = []  # modification time of each file, as in QueueSnapshot

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

    def set_extent(self, snapshot: QueueSnapshot, files_end: int) -> None:
        """Set the state of a queue that was found on disk.

        Files exist for queue offsets below `files_end`.
        """
        self.first_offset, self.min_offset, self.next_offset = snapshot[:3]
        self.assigned_offset = snapshot.next_offset
        self.end_physical_offset = snapshot.end_physical_offset
        self._crcs, self._times_ns = list(snapshot.crcs), list(snapshot.times_ns)
        self._files_end = files_end

    @property
    def has_changed(self) -> bool:
        """True if the queue has changed since `snapshot` was called last."""
        return self._dirty_from >= 0

    def snapshot(self, *, is_last: bool = True) -> QueueSnapshot:
        """Return the current state, and mark the queue as unchanged.

        The state includes the modification times of the files. If `is_last` is False and the queue has
        changed since the previous snapshot, these times are left 0, because the queue will probably change
        again soon.
        """
        looks_up_times = is_last or self._dirty_from < 0
        if self._dirty_from >= 0:
            first = max(self._dirty_from - self.first_offset, 0) // self.units_per_file
            self._times_ns[first:] = [0] * len(self._times_ns[first:])
            self._dirty_from = -1
        if looks_up_times and 0 in self._times_ns:
            for number in range(self._times_ns.index(0), len(self._times_ns)):
                path = self.file_path(self.first_offset + number * self.units_per_file)
                self._times_ns[number] = settled_time_ns(path)
        return QueueSnapshot(
            self.first_offset,
            self.min_offset,
            self.next_offset,
            self.end_physical_offset,
            self._crcs.copy(),
            self._times_ns.copy(),
        )

    def _mark_changed_from(self, offset: int) -> None:
        """Record that units from queue offset `offset` on are about to be written or removed."""
        if self._dirty_from < 0:
            self._files.changed.append(self)
            self._dirty_from = offset
        elif offset < self._dirty_from:
            self._dirty_from = offset

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

    # ---- write ---------------------------------------------------------------------------------------------

    def append_units(self, units: memoryview, end_physical_offset: int) -> None:
        """Append units at `next_offset`, with one write per file.

        `end_physical_offset` is the CommitLog offset at which the record of the last unit ends. Raises
        OSError.
        """
        file_bytes = self._files.file_bytes
        if self._dirty_from < 0:
            self._mark_changed_from(self.next_offset)
        place = self.next_offset * UNIT_BYTES
        rest = units
        while True:
            within = place % file_bytes
            part = rest if within + len(rest) <= file_bytes else rest[: file_bytes - within]
            offset = place // UNIT_BYTES
            descriptor = self._file(offset) if offset < self._files_end else self._make_file(offset)
            write_bytes(descriptor, part, within)
            self._count_in(part, is_first=not within)
            place += len(part)
            if len(part) == len(rest):
                break
            rest = rest[len(part) :]
        self.end_physical_offset = end_physical_offset

    def has_file_for(self, count: int) -> bool:
        """Return True if the next `count` units all fit into the existing last file."""
        per_file = self._files.units_per_file
        return self.next_offset < self._files_end and self.next_offset % per_file + count <= per_file

    def begins_file_with(self, count: int) -> bool:
        """Return True if the next `count` units begin a new file and fit into it."""
        return self.next_offset == self._files_end and count <= self._files.units_per_file

    def count_written(self, units: memoryview, end_physical_offset: int, *, is_new: bool) -> None:
        """Count units that a bulk write has already written to this queue's file, after the last unit.

        `end_physical_offset` is the CommitLog offset at which the record of the last unit ends. `is_new` is
        True if the bulk write also created the file.
        """
        if is_new:
            self._files_end += self._files.units_per_file
        if self._dirty_from < 0:
            self._mark_changed_from(self.next_offset)
        self._count_in(units, is_first=not self.next_offset % self._files.units_per_file)
        self.end_physical_offset = end_physical_offset

    def _count_in(self, units: memoryview, *, is_first: bool) -> None:
        """Update CRC and offsets for units written at `next_offset`.

        `is_first` is True if these units are the first ones of a file.
        """
        if is_first:
            self._crcs.append(running_crc(units))
            self._times_ns.append(0)
        else:
            self._crcs[-1] = running_crc(units, self._crcs[-1])
        self.next_offset += len(units) // UNIT_BYTES
        if self.assigned_offset < self.next_offset:
            self.assigned_offset = self.next_offset

    def start_at(self, offset: int) -> None:
        """Make an empty queue begin at queue offset `offset`.

        Fillers are written before this offset in its file, whose name preserves the offset. Raises OSError.
        """
        for empty in self.file_offsets():
            self.remove_file(self.file_path(empty))
        self.first_offset = self.next_offset = offset - offset % self.units_per_file
        self._files_end = self.first_offset
        self._crcs, self._times_ns = [], []
        self._mark_changed_from(self.first_offset)
        self.fill_to(offset)
        if self._files_end <= offset:
            self._make_file(offset)
        self.min_offset, self.assigned_offset = offset, max(self.assigned_offset, offset)

    def reserve(self, offset: int) -> None:
        """Let the next unit get queue offset `offset`, which is greater than now. Raises OSError."""
        if self.next_offset == self.first_offset:
            self.start_at(offset)
        else:
            self.fill_to(offset)

    def start_again(self, offset: int) -> None:
        """Drop all units, and make the queue begin at queue offset `offset`. Raises OSError.

        Called if the topic was deleted and recreated, or if the first files of the queue are lost.
        """
        self.truncate_to(self.first_offset, 0)
        self.start_at(offset)

    def fill_to(self, offset: int) -> None:
        """Append fillers before queue offset `offset`, for records that no longer exist. Raises OSError."""
        while self.next_offset < offset:
            count = min(offset - self.next_offset, self.units_per_file)
            self.append_units(memoryview(FILLER * count), self.end_physical_offset)

    def _file(self, offset: int) -> int:
        return self._files.descriptors.get(self.file_path(offset))

    def _make_file(self, offset: int) -> int:
        path = self.file_path(offset)
        if offset == self.first_offset:
            Path(self._directory).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, self._files.file_bytes)
        except OSError:
            os.close(descriptor)
            raise
        self._files_end = offset - offset % self.units_per_file + self.units_per_file
        return self._files.descriptors.put(path, descriptor)

    def truncate_to(self, next_offset: int, end_physical_offset: int) -> None:
        """Drop the units from queue offset `next_offset` on.

        Later files are deleted, and the rest of the last file is filled with zeros. `end_physical_offset` is
        the CommitLog offset at which the record of the last remaining unit ends. Raises OSError.
        """
        self.next_offset = self.assigned_offset = max(next_offset, self.first_offset)
        self._mark_changed_from(self.next_offset)
        self.end_physical_offset = end_physical_offset
        self.min_offset = min(self.min_offset, self.next_offset)
        per_file = self.units_per_file
        files = max(
            -(-(self.next_offset - self.first_offset) // per_file), 1
        )  # the name of the first file preserves the queue's first offset
        keep_to = self.first_offset + files * per_file
        for offset in range(keep_to, self._files_end, per_file):
            self.remove_file(self.file_path(offset))
        self._files_end = min(self._files_end, keep_to)
        self.clear_tail()
        with_units = -(-(self.next_offset - self.first_offset) // per_file)
        del self._crcs[with_units:], self._times_ns[with_units:]
        within = self.next_offset % per_file
        if within and self._crcs:
            self._crcs[-1] = running_crc(self.read_units(self.next_offset - within, within))

    def truncate_after(self, physical_offset: int) -> None:
        """Drop the units of records at or after the CommitLog offset `physical_offset`.

        Raises OSError, StoreError.
        """
        cut = self.bisect(
            self.first_offset, self.next_offset, lambda unit: unit.physical_offset >= physical_offset
        )
        if cut < self.next_offset:
            end = 0
            if cut > self.first_offset and not (last := self.unit_at(cut - 1)).is_filler:
                end = last.physical_offset + last.size
            self.truncate_to(cut, end)

    def clear_tail(self) -> None:
        """Zero all bytes after the last unit in the last file. Raises OSError."""
        if self.next_offset < self._files_end:
            within = self.next_offset * UNIT_BYTES % self._files.file_bytes
            zero_data(self._file(self.next_offset), within, self._files.file_bytes)

    def remove_file(self, path: str) -> None:
        """Close and delete one of the queue's files, given by its path."""
        self._files.descriptors.drop(path)
        Path(path).unlink(missing_ok=True)

    def replace_file(self, offset: int, path: Path, crc: int) -> None:
        """Replace the full file that begins at queue offset `offset` by the file at `path`, by rename.

        `crc` is the CRC-32 of the new file. Raises OSError.
        """
        target = self.file_path(offset)
        path.rename(target)
        self._files.descriptors.drop(target)
        self._mark_changed_from(offset)
        self._crcs[(offset - self.first_offset) // self.units_per_file] = crc

    def remove(self) -> None:
        """Delete the queue's files and its directory."""
        directory = Path(self._directory)
        if directory.is_dir():
            for entry in list(os.scandir(self._directory)):
                self.remove_file(entry.path)
            directory.rmdir()

    def dirty_paths(self) -> list[str]:
        """Return the paths of the files written since the last snapshot; the caller must sync these files."""
        if self._dirty_from < 0:
            return []
        first = self._dirty_from - self._dirty_from % self.units_per_file
        stop = max(self.next_offset, first + 1)
        return [self.file_path(offset) for offset in range(first, stop, self.units_per_file)]

    # ---- read ----------------------------------------------------------------------------------------------

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

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set `min_offset` to the first queue offset whose record is still in the CommitLog.

        `min_physical_offset` is the CommitLog offset at which the CommitLog begins.
        """
        low, high = max(self.first_offset, self.min_offset), self.next_offset  # min_offset never decreases
        if (low or min_physical_offset) and low < high and self._is_gone(low, min_physical_offset):
            low = self.bisect(low + 1, high, lambda unit: unit.physical_offset >= min_physical_offset)
        if self.min_offset != low:
            self._mark_changed_from(self.next_offset)
        self.min_offset = low

    @property
    def has_dead_files(self) -> bool:
        """True if `take_dead_files` would return at least one file."""
        following = self.first_offset + self.units_per_file
        return following <= self.min_offset and following < self._files_end

    def take_dead_files(self) -> list[Path]:
        """Detach the files whose units are all before `min_offset`, and return their paths.

        The caller must delete these files. The last file of the queue is kept even if none of its records
        exist, because its name preserves the queue's next offset.
        """
        dead = []
        while self.has_dead_files:
            path = self.file_path(self.first_offset)
            self._files.descriptors.drop(path)
            dead.append(Path(path))
            del self._crcs[:1], self._times_ns[:1]
            self.first_offset += self.units_per_file
            self._mark_changed_from(self.next_offset)
        if 0 <= self._dirty_from < self.first_offset:
            self._dirty_from = self.first_offset
        return dead

    def _is_gone(self, offset: int, min_physical_offset: int) -> bool:
        unit = self.unit_at(offset)
        return unit.is_filler or unit.physical_offset < min_physical_offset

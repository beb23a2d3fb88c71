"""ConsumeQueue: where the messages of one queue lie in the CommitLog.

Unit n of the queue (`store.consumequeue.unit`) stands at byte 20·n over all its files. They are sparse at
their exact size and named by their first byte's place. Zeros follow the last unit.
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


class QueueFiles(NamedTuple):
    """What the queues of a store have in common; `changed` are those to be noted, each once."""

    file_bytes: int
    units_per_file: int
    descriptors: Descriptors
    changed: "list[ConsumeQueue]"
    residency: Residency


class QueueNote(NamedTuple):
    """What a queue held: units [first_offset, next_offset), the first `min_offset` of them in the log, the
    last one's record ending at `end_physical_offset`; for each file the CRC of its units and its time.
    """

    first_offset: int
    min_offset: int
    next_offset: int
    end_physical_offset: int
    crcs: list[int]
    times_ns: list[int]
    """When the file was last changed; 0 where that could not tell a later change (`settled_time_ns`)."""


class ConsumeQueue:
    """One queue's units.

    `next_offset` is where dispatch goes on; `assigned_offset` what the next append gets.
    """

    __slots__ = (
        "_crcs",
        "_directory",
        "_dirty_from",
        "_files",
        "_made_to",
        "_times_ns",
        "assigned_offset",
        "end_physical_offset",
        "first_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        """A queue without units; `directory` is its own, and is made when the first unit comes."""
        self.topic = topic
        self.queue_id = queue_id
        self._directory = directory
        self._files = files
        self.first_offset = 0  # the first unit of the first file
        self.min_offset = 0  # the first unit whose record is still in the log
        self.next_offset = 0
        self.assigned_offset = 0
        self.end_physical_offset = 0  # where the last unit's record ends
        self._made_to = 0  # offsets below this have their file
        self._dirty_from = -1  # the first unit not noted; −1 when it is not among the changed
        self._crcs: list[int] = []  # of the units in each file
        self._times_ns: list[int] = []  # of each file, as in QueueNote

    @property
    def directory(self) -> str:
        """Where its files are; a string, as there may be 20,000 of them."""
        return self._directory

    def set_extent(self, note: QueueNote, made_to: int) -> None:
        """What loading found; there are files up to unit `made_to`."""
        self.first_offset, self.min_offset, self.next_offset = note[:3]
        self.assigned_offset = note.next_offset
        self.end_physical_offset = note.end_physical_offset
        self._crcs, self._times_ns = list(note.crcs), list(note.times_ns)
        self._made_to = made_to

    @property
    def has_changed(self) -> bool:
        """Whether it is among the changed."""
        return self._dirty_from >= 0

    def note(self, *, is_last: bool = True) -> QueueNote:
        """What it holds now; not among the changed any more. The times of files are looked up.

        If it is not the last note, not of files that have changed since the one before: what has, may again.
        """
        looks = is_last or self._dirty_from < 0
        if self._dirty_from >= 0:
            first = max(self._dirty_from - self.first_offset, 0) // self.units_per_file
            self._times_ns[first:] = [0] * len(self._times_ns[first:])
            self._dirty_from = -1
        if looks and 0 in self._times_ns:
            for number in range(self._times_ns.index(0), len(self._times_ns)):
                path = self.file_path(self.first_offset + number * self.units_per_file)
                self._times_ns[number] = settled_time_ns(path)
        return QueueNote(
            self.first_offset,
            self.min_offset,
            self.next_offset,
            self.end_physical_offset,
            self._crcs.copy(),
            self._times_ns.copy(),
        )

    def _changes_from(self, offset: int) -> None:
        """Units from `offset` on are about to be written, or cut off."""
        if self._dirty_from < 0:
            self._files.changed.append(self)
            self._dirty_from = offset
        elif offset < self._dirty_from:
            self._dirty_from = offset

    @property
    def units_per_file(self) -> int:
        """Units that a file holds."""
        return self._files.units_per_file

    def file_offsets(self) -> range:
        """The first unit of each of its files."""
        return range(self.first_offset, self._made_to, self.units_per_file)

    def file_path(self, offset: int) -> str:
        """The file that holds unit `offset`."""
        place = offset * UNIT_BYTES
        return f"{self._directory}/{place - place % self._files.file_bytes:020d}"

    # ---- write ---------------------------------------------------------------------------------------------

    def append_units(self, units: memoryview, end_physical_offset: int) -> None:
        """Write units from `next_offset` on; one write unless a file ends. Raises OSError."""
        file_bytes = self._files.file_bytes
        if self._dirty_from < 0:
            self._changes_from(self.next_offset)
        place = self.next_offset * UNIT_BYTES
        rest = units
        while True:
            within = place % file_bytes
            part = rest if within + len(rest) <= file_bytes else rest[: file_bytes - within]
            offset = place // UNIT_BYTES
            descriptor = self._file(offset) if offset < self._made_to else self._make_file(offset)
            write_bytes(descriptor, part, within)
            self._count_in(part, is_first=not within)
            place += len(part)
            if len(part) == len(rest):
                break
            rest = rest[len(part) :]
        self.end_physical_offset = end_physical_offset

    def has_file_for(self, count: int) -> bool:
        """Whether the next `count` units all go into a file that is there already."""
        per_file = self._files.units_per_file
        return self.next_offset < self._made_to and self.next_offset % per_file + count <= per_file

    def begins_file_with(self, count: int) -> bool:
        """Whether the next `count` units go into a file that is still to be made."""
        return self.next_offset == self._made_to and count <= self._files.units_per_file

    def take_written(self, units: memoryview, end_physical_offset: int, *, is_new: bool) -> None:
        """Count units in that somebody has written for it, where it `has_file_for` them, or – `is_new` – into
        a file that was made for them.
        """
        if is_new:
            self._made_to += self._files.units_per_file
        if self._dirty_from < 0:
            self._changes_from(self.next_offset)
        self._count_in(units, is_first=not self.next_offset % self._files.units_per_file)
        self.end_physical_offset = end_physical_offset

    def _count_in(self, units: memoryview, *, is_first: bool) -> None:
        """Units have been written from `next_offset` on, where a file begins if it `is_first`."""
        if is_first:
            self._crcs.append(running_crc(units))
            self._times_ns.append(0)
        else:
            self._crcs[-1] = running_crc(units, self._crcs[-1])
        self.next_offset += len(units) // UNIT_BYTES
        if self.assigned_offset < self.next_offset:
            self.assigned_offset = self.next_offset

    def start_at(self, offset: int) -> None:
        """Let an empty queue begin at `offset`: fillers stand before it in its file. Raises OSError."""
        for empty in self.file_offsets():
            self.remove_file(self.file_path(empty))
        self.first_offset = self.next_offset = offset - offset % self.units_per_file
        self._made_to = self.first_offset
        self._crcs, self._times_ns = [], []
        self._changes_from(self.first_offset)
        self.fill_to(offset)
        self.min_offset = offset

    def start_again(self, offset: int) -> None:
        """Begin anew: the topic was deleted and made again, or the beginning is lost. Raises OSError."""
        self.truncate_to(self.first_offset, 0)
        self.start_at(offset)

    def fill_to(self, offset: int) -> None:
        """Hold the places up to `offset`, whose records are gone. Raises OSError."""
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
        self._made_to = offset - offset % self.units_per_file + self.units_per_file
        return self._files.descriptors.put(path, descriptor)

    def truncate_to(self, next_offset: int, end_physical_offset: int) -> None:
        """Drop the units from `next_offset` on: later files go, the rest of the file becomes zeros.

        Raises OSError.
        """
        self.next_offset = self.assigned_offset = max(next_offset, self.first_offset)
        self._changes_from(self.next_offset)
        self.end_physical_offset = end_physical_offset
        self.min_offset = min(self.min_offset, self.next_offset)
        per_file = self.units_per_file
        files = max(
            -(-(self.next_offset - self.first_offset) // per_file), 1
        )  # the first keeps the queue's place
        keep_to = self.first_offset + files * per_file
        for offset in range(keep_to, self._made_to, per_file):
            self.remove_file(self.file_path(offset))
        self._made_to = min(self._made_to, keep_to)
        self.clear_tail()
        with_units = -(-(self.next_offset - self.first_offset) // per_file)
        del self._crcs[with_units:], self._times_ns[with_units:]
        within = self.next_offset % per_file
        if within and self._crcs:
            self._crcs[-1] = running_crc(self.read_units(self.next_offset - within, within))

    def truncate_after(self, physical_offset: int) -> None:
        """Drop the units of records at or after `physical_offset`. Raises OSError, StoreError."""
        cut = self.bisect(
            self.first_offset, self.next_offset, lambda unit: unit.physical_offset >= physical_offset
        )
        if cut < self.next_offset:
            end = 0
            if cut > self.first_offset and not (last := self.unit_at(cut - 1)).is_filler:
                end = last.physical_offset + last.size
            self.truncate_to(cut, end)

    def clear_tail(self) -> None:
        """Make sure that only zeros follow the last unit in its file. Raises OSError."""
        if self.next_offset < self._made_to:
            within = self.next_offset * UNIT_BYTES % self._files.file_bytes
            zero_data(self._file(self.next_offset), within, self._files.file_bytes)

    def remove_file(self, path: str) -> None:
        """Remove one of the queue's files."""
        self._files.descriptors.drop(path)
        Path(path).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the queue with its directory."""
        directory = Path(self._directory)
        if directory.is_dir():
            for entry in list(os.scandir(self._directory)):
                self.remove_file(entry.path)
            directory.rmdir()

    def dirty_paths(self) -> list[str]:
        """The files written since the last note, for whoever makes them durable."""
        if self._dirty_from < 0:
            return []
        first = self._dirty_from - self._dirty_from % self.units_per_file
        stop = max(self.next_offset, first + 1)
        return [self.file_path(offset) for offset in range(first, stop, self.units_per_file)]

    # ---- read ----------------------------------------------------------------------------------------------

    def read_units(self, offset: int, count: int) -> bytes:
        """Up to `count` units from `offset` on, no further than the end of the file.

        Raises StoreError, and NotResident where it must not wait.
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
            raise StoreError("is shorter than it was", path, len(units))
        return units

    def unit_at(self, offset: int) -> Unit:
        """The unit at `offset`. Raises StoreError when there is none."""
        units = self.read_units(offset, 1)
        if not units:
            raise StoreError(f"queue {self.topic}-{self.queue_id} has no unit {offset}", self._directory)
        return Unit(*UNIT.unpack(units))

    def first_real(self, offset: int, stop: int) -> int:
        """The first unit in [offset, stop) that is a message's and not only holds a place; `stop` if none.

        Raises StoreError, and NotResident where it must not wait.
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

    def bisect(self, low: int, high: int, is_behind: Callable[[Unit], bool]) -> int:
        """The first message's unit in [low, high) that `is_behind`, as all after it are; `high` if none is.

        Places that are only held say nothing, wherever they stand. Raises as `first_real`.
        """
        stop = high
        while low < high:
            middle = (low + high) // 2
            real = self.first_real(middle, high)
            if real == high or is_behind(self.unit_at(real)):
                high = middle
            else:
                low = real + 1
        return self.first_real(low, stop)

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set `min_offset` to the first unit whose record is still in the log."""
        low, high = max(self.first_offset, self.min_offset), self.next_offset  # it never goes back
        if (low or min_physical_offset) and low < high and self._is_gone(low, min_physical_offset):
            low = self.bisect(low + 1, high, lambda unit: unit.physical_offset >= min_physical_offset)
        if self.min_offset != low:
            self._changes_from(self.next_offset)
        self.min_offset = low

    @property
    def has_dead_files(self) -> bool:
        """Whether `take_dead_files` would give something."""
        following = self.first_offset + self.units_per_file
        return following <= self.min_offset and following < self._made_to

    def take_dead_files(self) -> list[Path]:
        """Forget the files that end before `min_offset`, but never the last one; returns them to be unlinked.

        The last one keeps the queue's place: its name tells how many messages there have been.
        """
        dead = []
        while self.has_dead_files:
            path = self.file_path(self.first_offset)
            self._files.descriptors.drop(path)
            dead.append(Path(path))
            del self._crcs[:1], self._times_ns[:1]
            self.first_offset += self.units_per_file
            self._changes_from(self.next_offset)
        if 0 <= self._dirty_from < self.first_offset:
            self._dirty_from = self.first_offset
        return dead

    def _is_gone(self, offset: int, min_physical_offset: int) -> bool:
        unit = self.unit_at(offset)
        return unit.is_filler or unit.physical_offset < min_physical_offset

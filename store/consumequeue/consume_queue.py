"""ConsumeQueue: maps the offsets of one queue to positions in the CommitLog.

`store.consumequeue.readable_queue` has the layout of the files and the reads. This module writes: it appends
units, truncates, deletes files at either end, and describes the queue for a checkpoint.
"""

import os
from pathlib import Path
from typing import NamedTuple

from store.consumequeue.queue_files import QueueFiles
from store.consumequeue.readable_queue import ReadableQueue
from store.consumequeue.unit import FILLER, UNIT_BYTES
from store.disk.files import settled_time_ns, zero_data
from store.disk.files import write_all as write_bytes
from store.message.crc import running_crc


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


class ConsumeQueue(ReadableQueue):
    """A queue whose units are appended, truncated and described for checkpoints."""

    __slots__ = ("_crcs", "_dirty_from", "_times_ns")

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        super().__init__(topic, queue_id, directory, files)
        self._dirty_from = -1  # the first unit changed since the last snapshot; -1 if none
        self._crcs: list[int] = []  # CRC of the units of each file
        self._times_ns: list[int] = []  # modification time of each file, as in QueueSnapshot

    # ---- state for checkpoints -----------------------------------------------------------------------------

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

    # ---- append --------------------------------------------------------------------------------------------

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

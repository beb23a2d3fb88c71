"""Compare the consume queues with the CommitLog.

The log is dispatched as in a rebuild. Each unit that a rebuild would write is compared with the unit in the
consume queue file.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import Hole
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.queue_files import QueueFiles
from store.consumequeue.unit import FILLER, UNIT, UNIT_BYTES, Unit
from store.disk.files import data_ranges
from store.tools.verify.findings import Report

_KEPT_MAX = 100_000
_ZERO = bytes(UNIT_BYTES)
_READ_UNITS = 65_536


class _Difference(NamedTuple):
    offset: int
    expected: bytes
    found: bytes


class _Absence(NamedTuple):
    """A range of queue offsets [first, end) whose units are zeros or missing in the files."""

    first: int
    end: int


class CheckedQueue(ConsumeQueue):
    """A consume queue that does not write units, but compares them with the units in its files.

    The dispatch passes it the units that a rebuild would write.
    """

    __slots__ = ("absences", "bases", "differences", "unlisted")

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        super().__init__(topic, queue_id, directory, files)
        self.differences: list[_Difference] = []
        self.absences: list[_Absence] = []
        self.unlisted = 0  # number of differences beyond _KEPT_MAX
        entries = os.scandir(directory) if Path(directory).is_dir() else ()
        self.bases = {int(e.name): e.stat().st_size for e in entries if e.name.isdigit() and not e.is_dir()}

    # ---- called by the dispatch ----------------------------------------------------------------------------

    def append_units(self, units: memoryview, end_physical_offset: int) -> None:
        """Compare `units` with the units that the files have from queue offset `next_offset` on."""
        done, count = 0, len(units) // UNIT_BYTES
        while done < count:
            there = self.on_disk(self.next_offset + done, count - done)
            part = units[done * UNIT_BYTES : done * UNIT_BYTES + len(there)]
            if there != bytes(part):  # bytes: comparing a memoryview is slow, item by item
                self._compare(self.next_offset + done, part, there)
            done += len(there) // UNIT_BYTES
        self.next_offset += count
        self.end_physical_offset = end_physical_offset

    def start_at(self, offset: int) -> None:
        """Start the comparison at queue offset `offset`; earlier units are not compared."""
        self.first_offset = self.next_offset = self.min_offset = offset
        self.truncate_to(offset, 0)

    def start_again(self, offset: int) -> None:
        """Discard all differences: the topic was deleted and created again, so old units do not exist."""
        self.differences, self.absences, self.unlisted = [], [], 0
        self.start_at(offset)

    def truncate_to(self, next_offset: int, end_physical_offset: int) -> None:
        """Discard the differences from queue offset `next_offset` on: these units are compared again."""
        self.differences = [each for each in self.differences if each.offset < next_offset]
        self.absences = [
            _Absence(each.first, min(each.end, next_offset))
            for each in self.absences
            if each.first < next_offset
        ]
        self.next_offset = next_offset
        self.end_physical_offset = end_physical_offset

    def fill_to(self, offset: int) -> None:
        """Check that all units from `next_offset` up to queue offset `offset` are filler units."""
        while self.next_offset < offset:
            count = min(offset - self.next_offset, _READ_UNITS)
            self.append_units(memoryview(FILLER * count), self.end_physical_offset)

    def read_units(self, offset: int, count: int) -> bytes:
        """Return up to `count` units from queue offset `offset` on, from one file; see `on_disk`."""
        return self.on_disk(offset, count) if offset >= 0 and count > 0 else b""

    # ---- the files -----------------------------------------------------------------------------------------

    def on_disk(self, offset: int, count: int) -> bytes:
        """Return 1 to `count` units from queue offset `offset` on, up to the end of one file.

        Units of a missing file are returned as zeros.
        """
        per_file = self.units_per_file
        count = min(count, per_file - offset % per_file)
        base = (offset - offset % per_file) * UNIT_BYTES
        if base not in self.bases:
            return bytes(count * UNIT_BYTES)
        units = os.pread(self._file(offset), count * UNIT_BYTES, offset * UNIT_BYTES - base)
        return units.ljust(count * UNIT_BYTES, b"\0")

    def _compare(self, first: int, expected: memoryview, found: bytes) -> None:
        rows = _rows(found)
        differ = np.flatnonzero((_rows(expected) != rows).any(axis=1))
        absent = ~rows[differ].any(axis=1)
        for row in differ[~absent].tolist():
            if len(self.differences) >= _KEPT_MAX:
                self.unlisted += 1
                continue
            at = row * UNIT_BYTES
            self.differences.append(
                _Difference(first + row, bytes(expected[at : at + UNIT_BYTES]), found[at : at + UNIT_BYTES])
            )
        for row in differ[absent].tolist():
            if self.absences and self.absences[-1].end == first + row:
                self.absences[-1] = _Absence(self.absences[-1].first, first + row + 1)
            else:
                self.absences.append(_Absence(first + row, first + row + 1))


def _rows(units: bytes | memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(units, dtype=np.uint8).reshape(-1, UNIT_BYTES)


class QueueChecker:
    """Reports the differences that the queues have found, after the whole log has been dispatched."""

    def __init__(
        self,
        report: Report,
        holes: Sequence[Hole],
        refused: Collection[int],
        log_min: int,
        log_end: int,
        *,
        may_lag: bool,
    ) -> None:
        """Create a checker; call it after the dispatch of the whole log, which ends at `log_end`.

        `refused` are the CommitLog offsets of records with a damaged queue offset. `may_lag` is True if the
        store is open or was not closed cleanly, so that the last units may be missing.
        """
        self._report = report
        self._holes = holes
        self._refused = refused
        self._log_min = log_min
        self._log_end = log_end
        self._may_lag = may_lag
        self.lagging = 0

    def check(self, queue: CheckedQueue, *, is_deleted: bool) -> None:
        """Report all damage of a queue.

        `is_deleted` is True if the topic was deleted; its records may then have no queue.
        """
        self._check_files(queue)
        if is_deleted and not queue.bases:
            return
        for difference in queue.differences:
            self._report_difference(queue, difference)
        self._report.omitted += queue.unlisted
        for first, end in queue.absences:
            if end == queue.next_offset and self._may_lag:
                self.lagging += end - first
            elif end > first:
                self._report_absence(queue, first, end)
        self._check_outside(queue)

    def _check_files(self, queue: CheckedQueue) -> None:
        directory = Path(queue.directory)
        if not directory.is_dir():
            return
        file_bytes = queue.units_per_file * UNIT_BYTES
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            size_bytes = entry.stat().st_size
            if not entry.name.isdigit() or len(entry.name) != 20 or entry.is_dir():
                self._report.add(
                    entry.path,
                    -1,
                    size_bytes,
                    "file",
                    "unexpected file: only consume queue files may be in this directory",
                )
            elif size_bytes != file_bytes:
                reason = f"the file has {size_bytes:,} bytes instead of {file_bytes:,}"
                self._report.add(entry.path, -1, size_bytes, "file", reason)
            elif int(entry.name) % file_bytes:
                self._report.add(entry.path, -1, size_bytes, "file", "its name is not a multiple of its size")

    def _place(self, queue: CheckedQueue, offset: int) -> int:
        return offset % queue.units_per_file * UNIT_BYTES

    def _is_lost(self, physical_offset: int) -> bool:
        """Return True if no unit is expected for the record at a CommitLog offset.

        That is the case if the record was deleted, is in a hole, or has a damaged queue offset.
        """
        return (
            physical_offset < self._log_min
            or physical_offset in self._refused
            or any(hole.position <= physical_offset < hole.position + hole.size_bytes for hole in self._holes)
        )

    def _report_difference(self, queue: CheckedQueue, difference: _Difference) -> None:
        offset = difference.offset
        expected, found = Unit(*UNIT.unpack(difference.expected)), Unit(*UNIT.unpack(difference.found))
        path, place = queue.file_path(offset), self._place(queue, offset)
        if expected.is_filler:
            if not self._is_lost(found.physical_offset):
                reason = f"unit {offset} points to offset {found.physical_offset:,}, where it has no record"
                self._report.add(path, place, UNIT_BYTES, "unit", reason)
            return
        if found.is_filler:
            reason = f"unit {offset} is a filler, but its record is at offset {expected.physical_offset:,}"
            self._report.add(path, place, UNIT_BYTES, "unit", reason)
            return
        for name, at, end in (("physicalOffset", 0, 8), ("size", 8, 12), ("tagsCode", 12, 20)):
            wanted, there = difference.expected[at:end], difference.found[at:end]
            if wanted != there:
                numbers = [int.from_bytes(each, "big", signed=True) for each in (there, wanted)]
                reason = f"unit {offset}: {name} is {numbers[0]:,}, its record's is {numbers[1]:,}"
                self._report.add(path, place + at, end - at, "unit", reason)

    def _report_absence(self, queue: CheckedQueue, first: int, end: int) -> None:
        per_file = queue.units_per_file
        while first < end:
            stop = min(end, first - first % per_file + per_file)
            path, place = queue.file_path(first), self._place(queue, first)
            count = stop - first
            if int(Path(path).name) not in queue.bases:
                reason = f"the file with units {first} to {stop - 1} is missing"
                self._report.add(path, -1, count * UNIT_BYTES, "file", reason)
            else:
                reason = f"units {first} to {stop - 1} are zeros, but their records are in the log"
                self._report.add(path, place, count * UNIT_BYTES, "unit", reason)
            first = stop

    def _check_outside(self, queue: CheckedQueue) -> None:
        """Check the units before the first one and after the last one for which the log has a record."""
        per_file = queue.units_per_file
        for base, size_bytes in sorted(queue.bases.items()):
            first = base // UNIT_BYTES
            before = (first, min(queue.first_offset, first + per_file))
            behind = (max(queue.next_offset, first), first + per_file)
            for begin, end in (before, behind):
                if begin < end:
                    self._check_data(queue, base, begin, min(end, first + size_bytes // UNIT_BYTES))

    def _check_data(self, queue: CheckedQueue, base: int, begin: int, end: int) -> None:
        """Check the units [begin, end) of the consume queue file at byte position `base`.

        Skip sparse ranges.
        """
        path = Path(queue.file_path(begin))
        with path.open("rb") as file:
            ranges = list(data_ranges(file.fileno(), begin * UNIT_BYTES - base, end * UNIT_BYTES - base))
        for start, stop in ranges:
            self._check_range(queue, (base + start) // UNIT_BYTES, -(-(base + stop) // UNIT_BYTES))

    def _check_range(self, queue: CheckedQueue, first: int, end: int) -> None:
        while first < end:
            units = queue.on_disk(first, min(end - first, _READ_UNITS))
            rows = _rows(units)
            for row in np.flatnonzero(rows.any(axis=1)).tolist():
                offset = first + row
                if queue.first_offset <= offset < queue.next_offset:
                    continue
                unit = Unit(*UNIT.unpack_from(units, row * UNIT_BYTES))
                is_later = self._may_lag and unit.physical_offset >= self._log_end
                is_valid = unit.size > 0 and unit.physical_offset >= 0
                if is_valid and (unit.is_filler or self._is_lost(unit.physical_offset) or is_later):
                    continue
                reason = f"unit {offset} points to offset {unit.physical_offset:,}, where it has no record"
                self._report.add(
                    queue.file_path(offset), self._place(queue, offset), UNIT_BYTES, "unit", reason
                )
            first += len(rows)

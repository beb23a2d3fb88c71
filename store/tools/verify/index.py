"""Compare the index files with the keys that a rebuild would insert into them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.commitlog.holes import Hole
from store.disk.files import data_ranges
from store.index.index_file import IndexFile, index_file_bytes
from store.kernels import index_check as kernel
from store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.store_errors import StoreError
from store.tools.layout import StoreSizes
from store.tools.verify.findings import Report

_PROBLEMS = 4096
_FIELDS = {
    kernel.HASH: ("keyHash", 0, 4),
    kernel.PHYSICAL_OFFSET: ("phyOffset", 4, 8),
    kernel.SECONDS: ("timeDiff", 12, 4),
    kernel.CHAIN: ("the number of the previous entry", 16, 4),
}
_HEADER = (
    ("beginTimestamp", 0, 8),
    ("endTimestamp", 8, 8),
    ("beginPhyOffset", 16, 8),
    ("endPhyOffset", 24, 8),
    ("hashSlotCount", 32, 4),
)
_SECOND_MS = 1000
_COUNT_AT = 36


class LogExtent(NamedTuple):
    """The CommitLog offsets [begin, end) of the log, and the damaged ranges (holes) in it."""

    begin: int
    end: int
    holes: Sequence[Hole]

    def hole_rows(self) -> NDArray[np.int64]:
        """Return the begin and the end of each hole, as an array of shape (holes, 2)."""
        rows = [(hole.position, hole.position + hole.size_bytes) for hole in self.holes]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)


class IndexCheck:
    """Compares the entries of the index files with the keys of the records in the log, in the log's order."""

    def __init__(
        self,
        directory: Path,
        sizes: StoreSizes,
        report: Report,
        log: LogExtent,
        *,
        is_ours: bool,
        may_lag: bool,
    ) -> None:
        self._sizes = sizes
        self._report = report
        self._bounds = (log.begin, log.end, log.hole_rows())
        self._is_ours = is_ours
        self._may_lag = may_lag
        self._problems = np.zeros((_PROBLEMS, kernel.PROBLEM_FIELDS), dtype=np.int64)
        self._newest = np.zeros(sizes.index_slots, dtype=np.int32)
        self._state = np.zeros(kernel.STATE_FIELDS, dtype=np.int64)
        self._paths = self._valid_paths(directory)
        self.exists = bool(self._paths)
        self._file: IndexFile | None = None
        self._entry_count = 0
        self._before = 0 if log.begin == 0 else -1  # if log files were deleted, index files may have been too
        self.entries = 0
        self._missing = (0, -1)  # number of missing keys, and the offset of the first one's record
        self._open_next()

    def _valid_paths(self, directory: Path) -> list[Path]:
        right_bytes = index_file_bytes(self._sizes.index_slots, self._sizes.index_entries)
        valid = []
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            size_bytes = path.stat().st_size
            if not path.name.isdigit() or len(path.name) != 17 or not path.is_file():
                self._report.add(
                    path, -1, size_bytes, "file", "unexpected file: only index files may be in this directory"
                )
            elif size_bytes != right_bytes:
                reason = f"the file has {size_bytes:,} bytes instead of {right_bytes:,}"
                self._report.add(path, -1, size_bytes, "file", reason)
            else:
                valid.append(path)
        return valid

    def _open_next(self) -> bool:
        """Open the next index file. Return False if there are no more."""
        if not self._paths:
            return False
        path = self._paths.pop(0)
        slots, capacity = self._sizes.index_slots, self._sizes.index_entries
        try:
            self._file = IndexFile(path, slots, capacity, copy_on_write=True)
        except (OSError, StoreError) as error:
            self._report.add(path, -1, 0, "file", str(error))
            return self._open_next()
        self._newest[:] = 0
        self._state[:] = 0
        self._state[kernel.STATE_NUMBER] = 1
        self._state[kernel.STATE_BEFORE] = self._before
        self._entry_count = self._next_entry_number(self._file)
        return True

    def _next_entry_number(self, file: IndexFile) -> int:
        """Return the index at which the next entry of the file will be stored (indexCount in its header).

        If slots and entries agree on another value, indexCount is reported as damaged and that value is
        returned.
        """
        stored = int.from_bytes(file.array[_COUNT_AT:HEADER_BYTES].tobytes(), "big", signed=True)
        count = max(stored, 1)  # 0 in a new file of RocketMQ
        is_possible = stored >= 0 and count <= file.capacity
        by_slots = int(file.array[HEADER_BYTES : file.slots_end].view(">i4").max()) + 1
        if is_possible and (self._may_lag or count == by_slots):
            return count
        used = np.flatnonzero(file.array[file.slots_end :].reshape(-1, ENTRY_BYTES).any(axis=1))
        written = int(used[-1]) + 1 if len(used) else 1
        if is_possible and written != by_slots:
            return count
        reason = f"indexCount is {stored:,}, but its entries require {written:,}"
        self._report.add(file.path, _COUNT_AT, SLOT_BYTES, "index", reason)
        return written

    # ---- called by the dispatch ----------------------------------------------------------------------------

    def put(self, keys: NDArray[np.int64], count: int) -> None:
        """Compare the next keys of the log, the first `count` rows of `keys`, with the index entries."""
        row = 0
        while row < count:
            if self._file is None:
                self._count_missing(int(keys[row, 1]), count - row)
                return
            row, problems = kernel.compare_keys(
                self._file.array, self._entry_count, keys, row, count, self._newest, self._state,
                *self._bounds, self._is_ours, self._problems,
            )  # fmt: skip
            self._report_problems(self._file, problems)
            if row < count and self._state[kernel.STATE_NUMBER] >= self._entry_count:
                is_last = not self._paths
                self._end_file(self._file)
                if is_last or not self._open_next():
                    self._file = None

    @property
    def end_timestamp(self) -> int | None:
        """The storeTimestamp of the last record in the index; None if the index is empty."""
        return int(self._state[kernel.STATE_TIMESTAMP]) or None

    def _count_missing(self, position: int, keys: int) -> None:
        count, first = self._missing
        self._missing = (count + keys, first if count else position)

    @property
    def missing_count(self) -> int:
        """Number of keys in the log after the last key in the index."""
        return self._missing[0]

    def finish(self) -> None:
        """Check the entries that remain after the last key of the log, and report missing keys."""
        while self._file is not None:
            self._end_file(self._file)
            self._file = None
            self._open_next()
        if self.missing_count and self.exists and self._is_ours and not self._may_lag:
            reason = (
                f"{self.missing_count:,} keys are missing, of records from offset {self._missing[1]:,} on"
            )
            self._report.add("index", -1, 0, "index", reason)

    # ---- the end of a file ---------------------------------------------------------------------------------

    def _end_file(self, file: IndexFile) -> None:
        while self._state[kernel.STATE_NUMBER] < self._entry_count:
            problems = kernel.check_remaining_entries(
                file.array, self._entry_count, self._newest, self._state, *self._bounds, self._problems,
            )  # fmt: skip
            self._report_problems(file, problems)
        slot = 0
        while slot < self._sizes.index_slots:
            slot, problems = kernel.compare_slots(
                file.array, self._newest, slot, self._entry_count, self._may_lag, self._problems
            )
            self._report_problems(file, problems)
        if self._entry_count > 1:
            self._check_header(file)
        if not self._may_lag:
            self._check_rest(file)
        self._before = file.end_timestamp
        self.entries += self._entry_count - 1
        file.close()

    def _check_header(self, file: IndexFile) -> None:
        state = self._state
        expected: list[int] = [
            int(state[kernel.STATE_BEGIN]),
            int(state[kernel.STATE_TIMESTAMP]),
            int(state[kernel.STATE_FIRST_OFFSET]),
            int(state[kernel.STATE_PHYSICAL_OFFSET]),
            int(np.count_nonzero(self._newest)),
        ]
        for (name, at, size), wanted in zip(_HEADER, expected, strict=True):
            found = int.from_bytes(file.array[at : at + size].tobytes(), "big", signed=True)
            # Entries contain times in seconds, from which endTimestamp is restored after a truncation.
            is_near = name == "endTimestamp" and abs(wanted - found) < _SECOND_MS
            if found != wanted and not is_near and not self._may_lag:
                reason = f"{name} is {found:,}, but its entries require {wanted:,}"
                self._report.add(file.path, at, size, "index", reason)

    def _check_rest(self, file: IndexFile) -> None:
        entries = HEADER_BYTES + SLOT_BYTES * self._sizes.index_slots
        first = entries + ENTRY_BYTES * self._entry_count
        with file.path.open("rb") as opened:
            for start, stop in data_ranges(opened.fileno(), first, len(file.array)):
                used = file.array[start:stop].nonzero()[0]
                if len(used):
                    at, end = start + int(used[0]), start + int(used[-1]) + 1
                    self._report.add(file.path, at, end - at, "index", "data after the last entry")

    def _report_problems(self, file: IndexFile, count: int) -> None:
        entries = HEADER_BYTES + SLOT_BYTES * self._sizes.index_slots
        for code, number, expected, found in self._problems[:count].tolist():
            place = entries + ENTRY_BYTES * number
            if code in _FIELDS:
                name, at, size = _FIELDS[code]
                reason = f"entry {number}: {name} is {found:,}, but the keys of the log require {expected:,}"
                self._report.add(file.path, place + at, size, "index", reason)
            elif code == kernel.EXTRA:
                reason = f"entry {number} points to offset {found:,}, where no record has its key"
                self._report.add(file.path, place, ENTRY_BYTES, "index", reason)
            elif code == kernel.MISSING:
                reason = f"a key of the record at offset {number:,} is missing"
                self._report.add(file.path, -1, 0, "index", reason)
            else:
                reason = f"slot {number} points to entry {found:,}, but its newest entry is {expected:,}"
                at = HEADER_BYTES + SLOT_BYTES * number
                self._report.add(file.path, at, SLOT_BYTES, "index", reason)

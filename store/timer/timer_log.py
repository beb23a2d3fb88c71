"""TimerLog: the units of all timer messages, in the order of their arrival.

See docs/store-format.md#timer-files.

    timerlog/00000000000000000000  |unit|unit|…|blank|     a blank of at least 16 bytes ends a full file
    timerlog/00000000000104857600  |unit|unit|00000…

A blank begins with the number of bytes up to the end of the file:

    0      4   12      16
    | size | 0 | magic |
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store.commitlog.mapped_file import MappedFile, allocate_file, file_name
from store.disk.files import reserve, sync_directory
from store.message.record import MAGIC_BLANK
from store.store_errors import StoreError
from store.timer.timer_unit import UNIT_BYTES, UNITS, TimerUnit, decode_unit, valid_count

BLANK_BYTES: Final = 16
BLANK: Final = Struct(">iqi")


class TimerLog:
    """The files of one timer log, mapped to memory."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        """Map the existing files; `end` is then the end of the last one until `recover` is called.

        Args:
            directory: The directory `timerlog`; its parent is used for temporary files.
            file_bytes: Size of new files. Existing files must all have the size of the first one.

        Raises:
            StoreError: A file is missing, has the wrong size, or is not a file of a timer log.
        """
        self._directory = directory
        self._files: list[MappedFile] = []
        self.file_bytes = file_bytes
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
        if paths:
            self.file_bytes = paths[0].stat().st_size
        try:
            base = _base_of(paths[0]) if paths else 0
            for path in paths:
                _check_name(path, base)
                self._files.append(MappedFile(path, base, self.file_bytes))
                base += self.file_bytes
            for file in self._files[-1:]:
                reserve(file.descriptor, file.size_bytes, file.path)  # RocketMQ's file is sparse
        except BaseException:
            self.close()
            raise
        self.end = self._files[-1].end if self._files else 0
        """Position after the last unit."""

    @property
    def begin(self) -> int:
        """Position of the first file."""
        return self._files[0].base if self._files else 0

    @property
    def room(self) -> int:
        """Number of units that fit into the existing files."""
        return max(self._files[-1].end - BLANK_BYTES - self.end, 0) // UNIT_BYTES if self._files else 0

    @property
    def is_full(self) -> bool:
        """True if the next `append` needs a new file, which `allocate` creates."""
        return self.room == 0

    def allocate(self) -> None:
        """Create the next file; to be called if `is_full`, in any thread. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        base = self._files[-1].end if self._files else 0
        path = self._directory / file_name(base)
        allocate_file(path, self.file_bytes, self._directory.parent)
        sync_directory(self._directory)
        self._files.append(MappedFile(path, base, self.file_bytes))

    def append(self, unit: TimerUnit) -> int:
        """Append a unit and return its position. Raises StoreError if the last file is full."""
        if self.end and self.end < self.begin + self.file_bytes * len(self._files):
            self._end_file()
        if self.is_full:
            raise StoreError("the timer log is full: allocate its next file first", self._directory)
        position = self.end
        file = self._file_of(position)
        place = position - file.base
        data = unit.encode()
        # The size is written last: a unit without it is invalid.
        file.view[place + 4 : place + UNIT_BYTES] = data[4:]
        file.view[place : place + 4] = data[:4]
        self.end = position + UNIT_BYTES
        return position

    def unit_at(self, position: int) -> TimerUnit:
        """Return the unit at a position. Raises StoreError if there is no valid unit."""
        unit = None
        if self.begin <= position <= self.end - UNIT_BYTES:
            file = self._file_of(position)
            if position + UNIT_BYTES <= file.end:
                unit = decode_unit(file.view, position - file.base)
        if unit is None or unit.previous >= position:
            raise StoreError("there is no valid unit of the timer log here", self._directory, position)
        return unit

    def units(self, begin: int = 0) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yield for each file from position `begin` on: the position of its first unit, and its units.

        The first file is yielded from its beginning.
        """
        for file in self._files:
            if begin < file.end and file.base < self.end:
                count = (min(self.end, file.end - BLANK_BYTES) - file.base) // UNIT_BYTES
                yield file.base, np.frombuffer(file.view, UNITS, count)

    def recover(self, checked_to: int, physical_end: int) -> None:
        """Find the end: after the last valid unit that follows position `checked_to`.

        Units of records that end after `physical_end`, the end of the CommitLog, are invalid. Bytes after the
        end are overwritten with zeros. Raises OSError.
        """
        self.end = self._files[-1].end if self._files else 0
        for base, units in self.units(checked_to):
            count = valid_count(units, physical_end)
            if count < (self.file_bytes - BLANK_BYTES) // UNIT_BYTES:
                self.end = base + count * UNIT_BYTES
                break
        for file in self._files:
            if file.end > self.end:
                file.zero_from(max(self.end - file.base, 0))

    def sync(self) -> None:
        """Flush the last two files; all earlier ones were flushed before. Raises OSError."""
        for file in self._files[-2:]:
            os.fdatasync(file.descriptor)

    def delete_before(self, physical_offset: int) -> int:
        """Delete the leading files whose messages all precede a CommitLog offset; return their number.

        The last file is never deleted. Raises OSError.
        """
        deleted = 0
        while len(self._files) > 1:
            first = self._files[0]
            if self.end < first.end:
                break
            _, units = next(self.units(first.base))
            offsets = units["physical_offset"]
            # In most cases the last unit is enough, but it may be an old one (`TimerSchedule.compact`).
            if offsets[-1] >= physical_offset or offsets.max() >= physical_offset:
                break
            first.path.unlink()
            self._files.pop(0).close()
            deleted += 1
        return deleted

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._files = []

    def _file_of(self, position: int) -> MappedFile:
        return self._files[(position - self.begin) // self.file_bytes]

    def _end_file(self) -> None:
        """Write a blank if no further unit fits into the file of `end`."""
        file = self._file_of(self.end)
        if self.end + UNIT_BYTES + BLANK_BYTES > file.end:
            place = self.end - file.base
            file.view[place : place + BLANK_BYTES] = BLANK.pack(file.end - self.end, 0, MAGIC_BLANK)
            self.end = file.end


def _base_of(path: Path) -> int:
    if not path.name.isdecimal():
        raise StoreError("this is not a file of a timer log: move it away", path)
    return int(path.name)


def _check_name(path: Path, base: int) -> None:
    if path.name != file_name(base):
        raise StoreError(f"expected the timer log file {file_name(base)} here", path)

"""LiteUnits: the units of all lite topics, one for each message, in the order of the CommitLog.

    <store>/lite/units/<number of the first unit>   mapped files of UNITS_PER_FILE units, little-endian

    0                8          16     20       24     28             32
    | physicalOffset | previous | id   | offset | size | storedSecond |

`previous` is the number of the preceding unit of the same lite topic, -1 for its first one; `offset` is the
offset in the lite topic. Files whose messages are deleted are removed from the front.
"""

from __future__ import annotations

import binascii
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.disk.files import reserve, sync_directory

UNIT_BYTES: Final = 32
UNITS_PER_FILE: Final = 65_536
_UNIT: Final = Struct("<qqIIiI")
UNIT_TYPE: Final = np.dtype(
    [
        ("physical", "<i8"), ("previous", "<i8"), ("id", "<u4"), ("offset", "<u4"), ("size", "<i4"),
        ("stored_s", "<u4"),
    ]
)  # fmt: skip


class LiteUnit(NamedTuple):
    """One unit."""

    physical_offset: int
    previous: int
    id: int
    offset: int
    size: int
    stored_s: int


class LiteUnits:
    """The files of units of one store."""

    def __init__(self, directory: Path, units_per_file: int = UNITS_PER_FILE) -> None:
        self._directory = directory
        self._per_file = units_per_file
        self._maps: list[mmap.mmap] = []
        self._crcs: list[int] = []
        self._checked = 0  # units of the last file in its CRC
        self.first = self.end = 0
        """The numbers of the first unit, and behind the last one."""

    def get(self, number: int) -> LiteUnit:
        """Return a unit, which must exist."""
        index, at = divmod(number - self.first, self._per_file)
        return LiteUnit._make(_UNIT.unpack_from(self._maps[index], at * UNIT_BYTES))

    def room(self) -> int:
        """Return how many units fit into the last file, at least one: a new file is made. Raises OSError."""
        used = self.end - self.first - self._per_file * (len(self._maps) - 1)
        if used == self._per_file or not self._maps:
            self._close_crc()
            self._maps.append(self._open(self.end))
            self._crcs.append(0)
            self._checked = used = 0
        return self._per_file - used

    def add(self, units: NDArray[np.int64]) -> None:
        """Append units, one a row, with the columns of UNIT_TYPE; there is `room` for them."""
        index, at = divmod(self.end - self.first, self._per_file)
        added = np.frombuffer(self._maps[index], UNIT_TYPE, len(units), at * UNIT_BYTES)
        for column, name in enumerate(added.dtype.names or ()):
            added[name] = units[:, column]
        self.end += len(units)

    def truncate(self, end: int) -> None:
        """Drop the units from `end` on."""
        self.end = max(end, self.first)
        kept = -(-(self.end - self.first) // self._per_file)
        del self._maps[kept:], self._crcs[kept:]
        self._checked = 0
        if self._crcs:
            self._crcs[-1] = 0

    def drop_before(self, log_min: int) -> list[NDArray[np.void]]:
        """Remove the files of which all messages are before CommitLog offset `log_min`; return their units.

        Raises OSError.
        """
        dropped = []
        while self.end > self.first + self._per_file and self.get(self.first + self._per_file)[0] <= log_min:
            dropped.append(self._units(0).copy())
            self._path(self.first).unlink(missing_ok=True)
            del self._maps[0], self._crcs[0]
            self.first += self._per_file
        return dropped

    def state(self) -> tuple[int, int, Sequence[int]]:
        """Return the numbers of the first unit and behind the last one, and the CRC-32 of each file."""
        self._close_crc()
        return self.first, self.end, self._crcs[: -(-(self.end - self.first) // self._per_file)]

    def load(self, first: int, end: int, crcs: Sequence[int]) -> None:
        """Map the files with these units. Raises ValueError if a CRC does not match, OSError."""
        self.first, self.end, self._maps, self._crcs, self._checked = first, end, [], [], 0
        for index, crc in enumerate(crcs):
            self._maps.append(self._open(first + index * self._per_file))
            self._crcs.append(0)
            self._checked = 0
            units = self._units(index)
            self._crcs[-1], self._checked = binascii.crc32(units.tobytes()), len(units)
            if self._crcs[-1] != crc:
                raise ValueError(
                    f"the CRC of lite units from {first + index * self._per_file} does not match"
                )
        if -(-(end - first) // self._per_file) != len(crcs):
            raise ValueError(f"{len(crcs)} files do not have the lite units {first} to {end}")

    def clear(self) -> None:
        """Remove all files. Raises OSError."""
        self.first = self.end = self._checked = 0
        self._maps, self._crcs = [], []
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                path.unlink()

    def arrays(self) -> Sequence[NDArray[np.void]]:
        """Return the units of each file, in their order."""
        return [self._units(index) for index in range(len(self._maps))]

    def _units(self, index: int) -> NDArray[np.void]:
        count = min(self.end - self.first - index * self._per_file, self._per_file)
        return np.frombuffer(self._maps[index], UNIT_TYPE, count)

    def _close_crc(self) -> None:
        """Add the units to the CRC of the last file that are not in it yet."""
        if self._maps:
            units = self._units(len(self._maps) - 1)
            self._crcs[-1] = binascii.crc32(units[self._checked :].tobytes(), self._crcs[-1])
            self._checked = len(units)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:020}"

    def _open(self, number: int) -> mmap.mmap:
        path, size_bytes = self._path(number), self._per_file * UNIT_BYTES
        self._directory.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            reserve(descriptor, size_bytes, path)
            found = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self._directory)
        return found

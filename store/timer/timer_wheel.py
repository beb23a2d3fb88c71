"""TimerWheel: for each second of two weeks, the units of the timer log that are due in it.

See docs/store-format.md#timer-files:

    timerwheel: 1,209,600 slots of 32 bytes = 38,707,200 bytes; second s has slot s mod 1,209,600

A slot, big-endian:

    0        8               16             24      28
    | second | firstPosition | lastPosition | messages | magic |

Each unit of the timer log has the position of the preceding one of its second, so `lastPosition` leads to all
of them. A slot is valid only for the second that it contains. A unit that cancels another message decreases
`messages`.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.commitlog.mapped_file import MappedFile, allocate_file
from store.disk.files import reserve
from store.timer.timer_unit import NO_POSITION

SLOTS: Final = 2 * 7 * 24 * 3600
SLOT_BYTES: Final = 32
WHEEL_BYTES: Final = SLOTS * SLOT_BYTES
SLOT: Final = Struct(">qqqii")
TABLE: Final = np.dtype(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("messages", ">i4"), ("magic", ">i4")]
)


class Slot(NamedTuple):
    """The units of one second: positions of the first and the last one, and the number of messages."""

    first: int = NO_POSITION
    last: int = NO_POSITION
    messages: int = 0
    magic: int = 0


class TimerWheel:
    """The mapped file of one wheel."""

    def __init__(self, path: Path) -> None:
        """Map the wheel; create it if the file does not exist.

        Raises:
            OSError: The file cannot be created or mapped.
            StoreError: The file has the wrong size.
        """
        if not path.exists():
            allocate_file(path, WHEEL_BYTES, path.parent)
        self._file = MappedFile(path, 0, WHEEL_BYTES)
        reserve(self._file.descriptor, WHEEL_BYTES, path)  # RocketMQ's file is sparse

    def slot(self, second: int) -> Slot:
        """Return the slot of a second; an empty one if no unit was added for it."""
        found, *fields = SLOT.unpack_from(self._file.view, second % SLOTS * SLOT_BYTES)
        return Slot(*fields) if found == second else Slot()

    def put(self, second: int, slot: Slot) -> None:
        """Replace the slot of a second."""
        SLOT.pack_into(self._file.view, second % SLOTS * SLOT_BYTES, second, *slot)

    def table(self) -> NDArray[np.void]:
        """Return all slots as an array, which shares memory with the file."""
        return np.frombuffer(self._file.view, TABLE)

    def next_second(self, begin: int, end: int) -> int:
        """Return the first second of [begin, end) for which a unit was added; `end` if no second has."""
        seconds = self.table()["second"]
        while begin < end:
            slot = begin % SLOTS
            count = min(end - begin, SLOTS - slot)
            found = np.flatnonzero(seconds[slot : slot + count] == np.arange(begin, begin + count))
            if len(found):
                return begin + int(found[0])
            begin += count
        return end

    def pending(self, from_second: int) -> int:
        """Return the number of messages that are due in `from_second` or later."""
        table = self.table()
        return int(table["messages"][table["second"] >= from_second].sum(dtype=np.int64))

    def due_within(self, begin: int, end: int) -> int:
        """Return the number of messages that are due in the seconds [begin, end), at most SLOTS."""
        table, found = self.table(), 0
        while begin < end:
            slot = begin % SLOTS
            count = min(end - begin, SLOTS - slot)
            part = table[slot : slot + count]
            is_due = part["second"] == np.arange(begin, begin + count)
            found += int(part["messages"][is_due].sum(dtype=np.int64))
            begin += count
        return found

    def sync(self) -> None:
        """Flush the file. Raises OSError."""
        os.fdatasync(self._file.descriptor)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

"""A timer unit: one pending timer message in the timer log (docs/store-format.md#timer-files).

52 bytes, big-endian:

    0      4          12      16          24        28               36            40          44
    | size | previous | magic | writtenMs | delayMs | physicalOffset | recordBytes | topicHash | reserved |

`previous` is the position of the preceding unit of the same second, or -1. `writtenMs + delayMs` is the time
of the unit. RocketMQ writes a multiple of 1000; RayMQ writes the delivery time minus 1 ms, which belongs to
the same second of the wheel.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES: Final = 52
UNIT: Final = Struct(">iqiqiqiiq")
UNITS: Final = np.dtype(
    [
        ("size", ">i4"), ("previous", ">i8"), ("magic", ">i4"), ("written_ms", ">i8"), ("delay_ms", ">i4"),
        ("physical_offset", ">i8"), ("record_bytes", ">i4"), ("topic_hash", ">i4"), ("reserved", ">i8"),
    ]
)  # fmt: skip
"""The same layout as a numpy type, for scans of a file."""

NORMAL: Final = 1
ROLL: Final = 2
"""Flag: at its time the message is appended to the timer topic again, because its delivery is later."""
DELETE: Final = 4
"""Flag: the message names another timer message of the same second that must not be delivered."""
MAGIC_MAX: Final = 15

NO_POSITION: Final = -1
MS_PER_SECOND: Final = 1000


class TimerUnit(NamedTuple):
    """A decoded unit; its size and reserved field are constant."""

    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    record_bytes: int
    topic_hash: int

    @property
    def time_ms(self) -> int:
        """The time of the unit, in ms since the epoch; the message is due later than this."""
        return self.written_ms + self.delay_ms

    @property
    def second(self) -> int:
        """The second of the wheel that the unit belongs to."""
        return self.time_ms // MS_PER_SECOND

    @property
    def is_roll(self) -> bool:
        """True if the message must be appended to the timer topic again."""
        return bool(self.magic & ROLL)

    @property
    def is_delete(self) -> bool:
        """True if the message cancels another one now. One that is rolled does so after its last roll."""
        return bool(self.magic & DELETE) and not self.is_roll

    def encode(self) -> bytes:
        """Return the 52 bytes of the unit."""
        return UNIT.pack(UNIT_BYTES, *self, 0)


def decode_unit(buffer: bytes | memoryview, place: int = 0) -> TimerUnit | None:
    """Return the unit at byte `place`, or None if there is no valid unit."""
    size, *fields, _ = UNIT.unpack_from(buffer, place)
    unit = TimerUnit(*fields)
    return unit if size == UNIT_BYTES and 0 < unit.magic <= MAGIC_MAX and unit.previous >= -1 else None


def valid_count(units: NDArray[np.void], physical_end: int) -> int:
    """Return the number of valid units before the first invalid one.

    A unit is invalid if its record ends after `physical_end`, the end of the CommitLog.
    """
    magic = units["magic"]
    valid = (units["size"] == UNIT_BYTES) & (magic > 0) & (magic <= MAGIC_MAX) & (units["previous"] >= -1)
    valid &= units["physical_offset"] + units["record_bytes"] <= physical_end
    return len(units) if valid.all() else int(valid.argmin())

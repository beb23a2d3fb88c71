"""Checking the units of a consume queue that is loaded."""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.memory import load_i32, load_i64
from store.kernels.units import FILLER_SIZE, UNIT_BYTES

Bytes = NDArray[np.uint8]


@kernel()
def sound_units(units: Bytes, count: int, previous_end: int, log_end: int) -> tuple[int, int]:
    """How many of the first `count` units follow each other soundly, and the log offset where the last one's
    record ends.

    Physical offsets rise from `previous_end`, sizes are above 0, records end at or before `log_end`; units
    that only hold a place may stand anywhere.
    """
    end = previous_end
    for index in range(count):
        unit = index * UNIT_BYTES
        physical = load_i64(units, unit)
        size = load_i32(units, unit + 8)
        if size == FILLER_SIZE and physical == 0:
            continue
        if size <= 0 or physical < end or physical + size > log_end:
            return index, end
        end = physical + size
    return count, end

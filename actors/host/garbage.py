"""Garbage collection in a process that serves: seldom over everything, as a full collection holds the loop.

Almost all that a broker makes goes by reference counts. A full collection walks over every object that may be
part of a cycle, which 50,000 held pulls make some 20 ms of, every few seconds at Python's own thresholds.
"""

from __future__ import annotations

import gc
from typing import Final

# Net allocations between two collections of the young; of those between two of the middle-aged; of those
# between two of everything. An object costs up to 0.25 µs: the first two take 4 ms at most.
THRESHOLDS: Final = (4_000, 2, 10_000)


def settle() -> None:
    """Call once when all is started: what is alive now stays so, and need not be walked over again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)

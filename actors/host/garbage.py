"""Garbage collection in a serving process: full collections are rare, because each one blocks the loop.

Reference counts free almost all objects of a broker. A full collection visits every object that may be part
of a cycle: 20 ms with 50,000 held pulls, every few seconds at Python's own thresholds.
"""

from __future__ import annotations

import gc
from typing import Final

# Net allocations between collections of generation 0, of those between generation 1, of those between full
# collections. An object costs up to 0.25 µs: the first two take 4 ms at most.
THRESHOLDS: Final = (4_000, 2, 10_000)


def settle() -> None:
    """Exclude all objects alive now from later collections; call once when the process has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)

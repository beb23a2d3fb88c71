"""Garbage collection in a serving process: makes full collections rare, because each one blocks the loop.

Almost all objects of a broker are freed by their reference counts. A full collection visits every object that
may be part of a cycle. With 50,000 held pulls that takes 20 ms, every few seconds at Python's default
thresholds.
"""

from __future__ import annotations

import gc
from typing import Final

# Thresholds of `gc.set_threshold` for generations 0, 1 and 2. Visiting an object takes up to 0.25 µs, so a
# collection of generations 0 and 1 takes 4 ms at most.
THRESHOLDS: Final = (4_000, 2, 10_000)


def freeze() -> None:
    """Exclude all present objects from later collections, and set the thresholds; called after the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def unfreeze() -> None:
    """Collect all objects again, until `freeze`; called before the process starts another service."""
    gc.unfreeze()

"""CPU time that the hypervisor takes from this machine during a benchmark."""

from __future__ import annotations

import os
import time

import psutil


def stolen_s() -> float:
    """Return the stolen CPU time since boot in seconds, summed over all CPUs (`steal` in /proc/stat)."""
    return float(psutil.cpu_times().steal)


class StolenShare:
    """Share of CPU time that the hypervisor takes from this machine after the construction of this object."""

    def __init__(self) -> None:
        self._began_s, self._stolen_s = time.monotonic(), stolen_s()

    def so_far(self) -> float:
        """Return the stolen share, 0 to 1. The kernel counts stolen time in steps of 10 ms."""
        all_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        return (stolen_s() - self._stolen_s) / all_s

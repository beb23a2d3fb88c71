"""JumpingClocks: lets the wall clocks of processes jump, also of those that Ray starts.

The file has a number of 8 bytes for each process id: by how many ns its clock is ahead.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from store.common.clock import NS_PER_MS
from tests.cluster.conftest import REPO

FOLDER = Path(__file__).parent / "clocks"
PID_MAX = Path("/proc/sys/kernel/pid_max")


class JumpingClocks:
    """The clocks of the processes that are started with `environment`."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8 * (int(PID_MAX.read_text()) + 1)))
        with path.open("r+b") as file:
            self._ahead_ns = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.environment = {
            "RAYMQ_TEST_CLOCKS": str(path),
            "PYTHONPATH": os.pathsep.join(map(str, (FOLDER, REPO))),
        }

    def ahead_ms(self, pid: int) -> int:
        """Return by how many ms the clock of a process is ahead."""
        return self._ahead_ns[pid] // NS_PER_MS

    def set(self, pid: int, ahead_ms: int) -> None:
        """Set by how many ms the clock of a process is ahead."""
        self._ahead_ns[pid] = ahead_ms * NS_PER_MS

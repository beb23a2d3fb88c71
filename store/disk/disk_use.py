"""How full a disk is, and what a store does about it (store format, section 8).

    per cent in use   0 ……………… max ……………… force ……………… refuse ……… 100
    log files         by age at    by age at any  the oldest, of  the oldest, and
                      their hour   hour           any age         nothing is written

Writes that were refused come back when use has fallen to `force`, not at once below `refuse`: else each file
that is deleted would let some in. A level is passed when the use, rounded up, is over it.
"""

import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class DiskUse(NamedTuple):
    """One file system; `free_bytes` is what may still be taken without privilege."""

    used_bytes: int
    free_bytes: int

    @property
    def percent(self) -> int:
        """The share in use, rounded up (RocketMQ UtilAll.getDiskPartitionSpaceUsedPercent)."""
        return -(-self.used_bytes * 100 // max(self.used_bytes + self.free_bytes, 1))


DiskProbe = Callable[[Path], DiskUse]


def disk_use(path: Path) -> DiskUse:
    """The use of the file system that holds `path`. Raises OSError."""
    found = os.statvfs(path)
    return DiskUse((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize)


class Pressure(IntEnum):
    """How much a disk presses; each level does what those below it do."""

    NONE = 0
    CLEAN = 1
    FORCE = 2
    REFUSE = 3


class DiskLevels(NamedTuple):
    """In per cent: clean what has expired, clean by force, refuse writes."""

    max: int
    force: int
    refuse: int

    def pressure(self, use: DiskUse) -> Pressure:
        """What a disk so full calls for."""
        return Pressure(sum(use.percent > level for level in self))

    def excess_bytes(self, use: DiskUse) -> int:
        """What must go until `force` is kept again."""
        return max(use.used_bytes - (use.used_bytes + use.free_bytes) * self.force // 100, 0)

    def refusal(self, path: Path, use: DiskUse) -> str:
        """Why nothing is written, for whoever wants to write."""
        return (
            f"the disk of {path} is {use.percent} % full, {use.free_bytes:,} bytes are free: over "
            f"{self.refuse} % nothing is written (disk_refuse_writes_percent); it goes on by itself when use "
            f"has fallen to {self.force} % (disk_force_clean_percent): free some space, or shorten "
            "file_reserved_time_h"
        )


class DiskState(NamedTuple):
    """What a survey of a store's disks says: the emptiest disk of the log, and that of the queues."""

    log: tuple[Path, DiskUse]
    derived: tuple[Path, DiskUse]

    def pressure(self, levels: DiskLevels) -> Pressure:
        """The greater of both disks'."""
        return max(levels.pressure(self.log[1]), levels.pressure(self.derived[1]))

    def refusal(self, levels: DiskLevels) -> str:
        """The words of the fuller disk."""
        return levels.refusal(*max(self.log, self.derived, key=lambda disk: disk[1].percent))


def survey(logs: Sequence[Path], derived: Path, probe: DiskProbe) -> DiskState:
    """Ask every disk: there is room as long as one directory of the log has some. Raises OSError."""
    used = [(path, probe(path)) for path in logs]
    return DiskState(min(used, key=lambda disk: disk[1].percent), (derived, probe(derived)))

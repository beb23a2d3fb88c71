"""Disk usage, and the levels at which a store deletes files or refuses writes.

See docs/store-format.md#retention.

    usage in percent   0 ……………… max ……………… force ……………… refuse ……… 100
    log files          expired ones  expired ones   the oldest one, the oldest one, and
    deleted            at the set    at any hour    expired or not  writes are refused
                       hour

Refused writes resume when usage has fallen to `force`, not immediately below `refuse`: otherwise each deleted
file would admit a few writes. A level is exceeded if the usage, rounded up to whole percent, is above it.
"""

import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class DiskUse(NamedTuple):
    """The used and free bytes of one file system.

    `free_bytes` is the space available to unprivileged users.
    """

    used_bytes: int
    free_bytes: int

    @property
    def percent(self) -> int:
        """The used share of the file system in percent, rounded up.

        Computed as RocketMQ's UtilAll.getDiskPartitionSpaceUsedPercent.
        """
        return -(-self.used_bytes * 100 // max(self.used_bytes + self.free_bytes, 1))


DiskProbe = Callable[[Path], DiskUse]


def disk_use(path: Path) -> DiskUse:
    """Return the usage of the file system that contains `path`. Raises OSError."""
    found = os.statvfs(path)
    return DiskUse((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize)


class Pressure(IntEnum):
    """The measures that a store takes because of the usage of a disk; each level includes the lower ones.

    CLEAN: delete expired files at any hour. FORCE: also delete the oldest files, expired or not. REFUSE: also
    refuse writes.
    """

    NONE = 0
    CLEAN = 1
    FORCE = 2
    REFUSE = 3


class DiskLevels(NamedTuple):
    """The disk usages in percent above which the levels CLEAN, FORCE and REFUSE of `Pressure` begin."""

    max: int
    force: int
    refuse: int

    def pressure(self, use: DiskUse) -> Pressure:
        """Return the pressure level for this disk usage."""
        return Pressure(sum(use.percent > level for level in self))

    def excess_bytes(self, use: DiskUse) -> int:
        """Return how many bytes must be freed so that the usage falls to the level `force`.

        0 if it is below.
        """
        return max(use.used_bytes - (use.used_bytes + use.free_bytes) * self.force // 100, 0)

    def refusal(self, path: Path, use: DiskUse) -> str:
        """Return the error message for refused writes.

        The message contains the disk of `path`, its usage, the limits and the remedy.
        """
        return (
            f"the disk of {path} is {use.percent} % full, {use.free_bytes:,} bytes are free: writes are "
            f"refused above {self.refuse} % (disk_refuse_writes_percent) and resume when usage has fallen to "
            f"{self.force} % (disk_force_clean_percent): free disk space, or lower file_reserved_time_h"
        )


class DiskState(NamedTuple):
    """The measured usage of a store's disks; each disk is given by a path on it.

    `log` is the least full disk of the CommitLog, `derived` the disk of consume queues and index files.
    """

    log: tuple[Path, DiskUse]
    derived: tuple[Path, DiskUse]

    def pressure(self, levels: DiskLevels) -> Pressure:
        """Return the pressure level of the disk that has the higher level."""
        return max(levels.pressure(self.log[1]), levels.pressure(self.derived[1]))

    def refusal(self, levels: DiskLevels) -> str:
        """Return the error message for refused writes, with the usage of the fuller disk."""
        return levels.refusal(*max(self.log, self.derived, key=lambda disk: disk[1].percent))


def survey(logs: Sequence[Path], derived: Path, probe: DiskProbe) -> DiskState:
    """Measure the usage of all disks of a store. Raises OSError.

    Args:
        logs: The CommitLog's directories. Only the one on the least full disk is part of the result, because
            new files can be created there.
        derived: The directory of consume queues and index files.
        probe: Returns the usage of the disk that contains a path.
    """
    used = [(path, probe(path)) for path in logs]
    return DiskState(min(used, key=lambda disk: disk[1].percent), (derived, probe(derived)))

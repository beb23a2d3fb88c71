"""Generations: a number for each group that only rises, over restarts and lost disks too.

Numbers are reserved on disk in blocks, so that few grants wait for an fsync; a restart skips the rest of a
block. A group without a record begins at the present time in milliseconds: above whatever another
rebalancer, or this one on a disk now lost, may have given it.
"""

from pathlib import Path
from typing import Any, Final

from store.clock import Clock
from store.metadata import JsonConfigFile
from store.metadata.fields import table_entries, typed

BLOCK: Final = 100


class Generations:
    """The last generation of every group that was ever granted anything, and its longest lease."""

    def __init__(self, data_dir: Path, clock: Clock) -> None:
        self._file = JsonConfigFile(data_dir / "config" / "generations.json")
        self._clock = clock
        self._current: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._lease_ms: dict[str, int] = {}

    def load(self) -> None:
        """Read what was reserved; raises StoreError where that is damaged."""
        for group, (reserved, lease_ms) in (self._file.read(_reservations) or {}).items():
            self._reserved[group] = self._current[group] = reserved
            self._lease_ms[group] = lease_ms

    def lease_before_ms(self, group: str) -> int | None:
        """The longest lease this group's members may hold from before; None where it never had any."""
        return self._lease_ms.get(group)

    def current(self, group: str) -> int:
        """A number that no grant of this group was ever above."""
        known = self._current.get(group)
        if known is None:
            known = self._current[group] = self._clock.wall_ms()
        return known

    def next(self, group: str, lease_ms: int) -> int:
        """The group's next generation, under which leases of this length are given. Raises OSError, then
        giving none.
        """
        number = self.current(group) + 1
        self._reserve(group, number, lease_ms)
        self._current[group] = number
        return number

    def cover(self, group: str, lease_ms: int) -> None:
        """A lease of this length is about to be renewed: a restart must wait for it. Raises OSError."""
        if lease_ms > self._lease_ms.get(group, lease_ms):
            self._reserve(group, self.current(group), lease_ms)

    def _reserve(self, group: str, number: int, lease_ms: int) -> None:
        longest_ms = max(lease_ms, self._lease_ms.get(group, 0))
        if number <= self._reserved.get(group, -1) and longest_ms == self._lease_ms.get(group):
            return
        reserved = {**self._reserved, group: max(number + BLOCK, self._reserved.get(group, 0))}
        leases_ms = {**self._lease_ms, group: longest_ms}
        groups = {name: {"reserved": reserved[name], "leaseMs": leases_ms[name]} for name in reserved}
        self._file.save({"groups": groups})
        self._reserved, self._lease_ms = reserved, leases_ms


def _reservations(content: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Reserved number and longest lease by group, none missing: a number lost would be given again."""
    return {
        group: (typed(fields.get("reserved"), int, group), typed(fields.get("leaseMs"), int, group))
        for group, fields in table_entries(content, "groups").items()
    }

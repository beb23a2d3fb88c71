"""Generations: a number per group that never decreases, even after a restart or the loss of the disk.

Numbers are reserved on disk in blocks, so that few grants wait for an fsync; a restart skips the rest of a
block. A group without a stored number starts at the current time in milliseconds, which is higher than any
generation that another rebalancer, or this one before its disk was lost, can have assigned.
"""

from pathlib import Path
from typing import Any, Final

from store.common.clock import Clock
from store.common.json_file import JsonConfigFile
from store.message.json_fields import table_entries, typed

BLOCK: Final = 100


class Generations:
    """The last generation and the longest lease of every group that was assigned queues."""

    def __init__(self, data_dir: Path, clock: Clock) -> None:
        self._file = JsonConfigFile(data_dir / "config" / "generations.json")
        self._clock = clock
        self._current: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._lease_ms: dict[str, int] = {}

    def load(self) -> None:
        """Load the reserved generations from disk. Raises StoreError if the file is damaged."""
        for group, (reserved, lease_ms) in (self._file.read(_reservations) or {}).items():
            self._reserved[group] = self._current[group] = reserved
            self._lease_ms[group] = lease_ms

    def saved_lease_ms(self, group: str) -> int | None:
        """Return the longest lease that members may still hold after a restart, in milliseconds.

        Returns None if the group never had a lease.
        """
        return self._lease_ms.get(group)

    def current(self, group: str) -> int:
        """Return the current generation of the group; no grant has a higher one."""
        known = self._current.get(group)
        if known is None:
            known = self._current[group] = self._clock.wall_ms()
        return known

    def forget_unused(self, group: str) -> None:
        """Forget the generation of a group without members if none was assigned."""
        if group not in self._reserved:
            self._current.pop(group, None)

    def next(self, group: str, lease_ms: int) -> int:
        """Reserve and return the group's next generation, for grants with leases of `lease_ms`.

        Raises OSError if it cannot be saved; the generation is then unchanged.
        """
        number = self.current(group) + 1
        self._reserve(group, number, lease_ms)
        self._current[group] = number
        return number

    def save_lease(self, group: str, lease_ms: int) -> None:
        """Save `lease_ms` if it is the longest lease so far, because a restart must wait for it.

        Raises OSError if it cannot be saved.
        """
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
    """Return (reserved generation, longest lease in ms) by group.

    Raises StoreError if a value is missing, because a lost generation could be assigned again.
    """
    return {
        group: (typed(fields.get("reserved"), int, group), typed(fields.get("leaseMs"), int, group))
        for group, fields in table_entries(content, "groups").items()
    }

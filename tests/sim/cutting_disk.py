"""CuttingDisk: a disk that loses power between two syncs of one operation."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.faults.power import PowerLossDisk


class PowerLost(Exception):
    """The disk has lost power."""


class CuttingDisk(PowerLossDisk):
    """A disk that can lose power in the middle of an operation."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        super().__init__(root, rng)
        self._syncs_left = -1
        self._into = root
        self.image: Path | None = None  # what is left after a power loss

    def cut_before_sync(self, syncs: int, into: Path) -> None:
        """Lose power after this number of further syncs; `into` gets what is left."""
        self._syncs_left, self._into = syncs, into

    def sync(self, call: Callable[[int], None], descriptor: int, path: str) -> None:
        if self._syncs_left == 0:
            self._syncs_left = -1
            self.image = self.cut(self._into)
            raise PowerLost
        self._syncs_left = max(self._syncs_left - 1, -1)
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is None:
            super().sync(call, descriptor, path)
        else:  # no search for new names: most syncs are those of the log
            call(descriptor)
            file.sync()

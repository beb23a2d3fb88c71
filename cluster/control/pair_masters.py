"""The masters of pairs: which replica was promoted last, and the epoch of the pair since then.

Each pair whose first replica is not its master, or was not once, has a record. The greater epoch is valid.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson

from cluster.control.kept_records import KeptRecords

_REMEDY = (
    'restore it from a backup, or write {"epoch": E, "replica": N}: N is the number of the replica that was '
    "promoted last, and E the last epoch in epochFileCheckpoint of its store; delete it if no replica of the "
    "group was ever promoted"
)


@dataclass(frozen=True)
class PairMaster:
    """The master of a pair: `epoch` counts its promotions, `replica` is the number of the promoted one."""

    epoch: int = 0
    replica: int = 0

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> PairMaster:
        """Return the record that `encode` encoded. Raises ValueError or TypeError for damaged data."""
        found = cls(**orjson.loads(data))
        if not all(type(number) is int and number >= 0 for number in (found.epoch, found.replica)):
            raise ValueError("epoch and replica must be numbers of 0 or more")
        return found


_MASTERS = KeptRecords(
    "group:", "groups", PairMaster.decode, _REMEDY, lambda copy, current: copy.epoch > current.epoch
)
exchange, save = _MASTERS.exchange, _MASTERS.save

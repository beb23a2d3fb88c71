"""`delayOffset.json`: the delivery progress of delayed messages, by delay level."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.common.clock import Clock
from store.message.data_version import DATA_VERSION, DataVersion
from store.message.json_fields import fields_except, store_errors_for, typed

MOVES_PER_VERSION = 200  # RocketMQ's delayOffsetUpdateVersionStep

_TABLE = "offsetTable"


@dataclass(slots=True)
class DelayOffsetTable:
    """Delivery progress of delayed messages.

    `offsets[level]` is the queue offset of the next message to deliver from the queue of this delay level.
    `settled` is an earlier state, whose deliveries the CommitLog cannot lose: only this is saved, and sent to
    slaves. Every 200th change of an offset changes the data version, as in RocketMQ.
    """

    clock: Clock
    offsets: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    _noted: tuple[dict[int, int], int] | None = None
    _moves: int = 0

    def __post_init__(self) -> None:
        self.settled = dict(self.offsets)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "DelayOffsetTable":
        """Return the table in a parsed `delayOffset.json`. Raises StoreError if a field has a wrong type."""
        with store_errors_for("delayOffset.json"):
            offsets = typed(content.get(_TABLE, None if content else {}), dict[int, int], _TABLE)
            return cls(
                clock, offsets, DataVersion.of_table(content), fields_except(content, DATA_VERSION, _TABLE)
            )

    def to_json(self) -> dict[str, Any]:
        """Return the content of `delayOffset.json`; later changes of the table do not affect it."""
        table = {str(level): offset for level, offset in self.settled.items()}
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def replace_all(self, other: "DelayOffsetTable") -> None:
        """Take over the offsets and the data version of another table, in one step."""
        self.offsets, self.data_version = other.offsets, other.data_version
        self.settled, self._noted = dict(other.offsets), None

    def restore(self, level: int, offset: int) -> None:
        """Set the progress of a level as another replica has it: none of its deliveries can be lost."""
        self.offsets[level] = self.settled[level] = offset
        self._noted = None

    def settle(self, written: int, safe: int) -> None:
        """Update `settled`; to be called from time to time.

        Args:
            written: the end of the CommitLog, which has all deliveries so far.
            safe: the CommitLog offset before which no record can be lost: flushed and confirmed.
        """
        if self._noted is not None and self._noted[1] <= safe:
            self.settled, self._noted = self._noted[0], None
        if written <= safe:
            self.settled, self._noted = dict(self.offsets), None
        elif self._noted is None:
            self._noted = (dict(self.offsets), written)

    def move(self, level: int, offset: int) -> None:
        """Set the offset of the next message to deliver from a delay level.

        All earlier ones are delivered.
        """
        if self.offsets.get(level) == offset:
            return
        self.offsets[level] = offset
        self._moves += 1
        if self._moves % MOVES_PER_VERSION == 0:
            self.data_version = self.data_version.next(self.clock.wall_ms())

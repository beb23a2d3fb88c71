"""`delayOffset.json`: how far the messages of each delay level have been delivered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.clock import Clock
from store.metadata.data_version import DATA_VERSION, DataVersion
from store.metadata.fields import faults_of, others, typed

MOVES_A_VERSION = 200  # RocketMQ's delayOffsetUpdateVersionStep

_TABLE = "offsetTable"


@dataclass(slots=True)
class DelayOffsetTable:
    """By level, the next offset to deliver of its queue; every 200th move changes the version."""

    clock: Clock
    offsets: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    _moves: int = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any], clock: Clock) -> "DelayOffsetTable":
        """Raises StoreError."""
        with faults_of("delayOffset.json"):
            offsets = typed(content.get(_TABLE, None if content else {}), dict[int, int], _TABLE)
            return cls(clock, offsets, DataVersion.of_table(content), others(content, DATA_VERSION, _TABLE))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object, a copy of the present state."""
        table = {str(level): offset for level, offset in self.offsets.items()}
        return {**self.unknown, DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def move(self, level: int, offset: int) -> None:
        """What comes before `offset` has been delivered."""
        if self.offsets.get(level) == offset:
            return
        self.offsets[level] = offset
        self._moves += 1
        if self._moves % MOVES_A_VERSION == 0:
            self.data_version = self.data_version.next(self.clock.wall_ms())

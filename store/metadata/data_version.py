"""DataVersion: tells one state of a table from another, for the nameservers and slaves that hold copies."""

from collections.abc import Mapping
from typing import Any

import msgspec

from store.metadata.fields import typed

DATA_VERSION = "dataVersion"


class DataVersion(msgspec.Struct, frozen=True):
    """The later of two states has the higher counter; `timestamp_ms` is when it came about."""

    counter: int = 0
    timestamp_ms: int = msgspec.field(name="timestamp", default=0)
    state_version: int = msgspec.field(name="stateVersion", default=0)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DataVersion":
        """Return the version in RocketMQ's object. Raises ValueError."""
        return typed({name: value for name, value in content.items() if value is not None}, cls, DATA_VERSION)

    @classmethod
    def of_table(cls, content: Mapping[str, Any]) -> "DataVersion":
        """Return the version in a table's object, the first one if it has none. Raises ValueError."""
        version = content.get(DATA_VERSION)
        return cls() if version is None else cls.from_json(typed(version, dict, DATA_VERSION))

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's object."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after a change."""
        return DataVersion(self.counter + 1, now_ms, self.state_version)

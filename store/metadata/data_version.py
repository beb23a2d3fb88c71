"""DataVersion: tells one state of a table from another, for the nameservers and slaves that hold copies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from store.metadata.fields import Field, read_fields, typed

DATA_VERSION = "dataVersion"
_FIELDS = (
    Field("counter", "counter", int),
    Field("stateVersion", "state_version", int),
    Field("timestamp", "timestamp_ms", int),
)


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The later of two states has the higher counter; `timestamp_ms` is when it came about."""

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DataVersion":
        """Raises ValueError."""
        return cls(**read_fields(content, _FIELDS)[0])

    @classmethod
    def of_table(cls, content: Mapping[str, Any]) -> "DataVersion":
        """The version in a table's object, the first one where it has none. Raises ValueError."""
        version = content.get(DATA_VERSION)
        return cls() if version is None else cls.from_json(typed(version, dict, DATA_VERSION))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def next(self, now_ms: int) -> "DataVersion":
        """The version after a change."""
        return DataVersion(self.counter + 1, now_ms, self.state_version)

"""DataVersion: the version of a table, by which nameservers and slaves detect that their copy is outdated."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from store.message.json_fields import typed

DATA_VERSION = "dataVersion"

# The range of Java's long: orjson could not write a larger number back.
_Long = Annotated[int, msgspec.Meta(ge=-(2**63 - 1), le=2**63 - 1)]


class DataVersion(msgspec.Struct, frozen=True):
    """The version of a table.

    `counter` grows with each change, and `timestamp_ms` is the time of the last change.
    """

    counter: _Long = 0
    timestamp_ms: _Long = msgspec.field(name="timestamp", default=0)
    state_version: _Long = msgspec.field(name="stateVersion", default=0)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DataVersion":
        """Decode a version from RocketMQ's JSON object. Raises ValueError if a field has a wrong type."""
        return typed({name: value for name, value in content.items() if value is not None}, cls, DATA_VERSION)

    @classmethod
    def of_table(cls, content: Mapping[str, Any]) -> "DataVersion":
        """Return the version stored in the JSON content of a table, or the initial version if it has none.

        Raises ValueError if a field has a wrong type.
        """
        version = content.get(DATA_VERSION)
        return cls() if version is None else cls.from_json(typed(version, dict, DATA_VERSION))

    def is_after(self, other: "DataVersion") -> bool:
        """Return True if this version of a table is later than `other`."""
        return (self.timestamp_ms, self.counter) > (other.timestamp_ms, other.counter)

    def to_json(self) -> dict[str, Any]:
        """Encode the version as RocketMQ's JSON object."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version that the table gets after a change at time `now_ms`."""
        return DataVersion(self.counter + 1, now_ms, self.state_version)

"""`consumerOrderInfo.json`: the last batch of each queue that a consumer group pops in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.message.json_fields import fields_except, store_errors_for, table_entries, typed

_TABLE = "table"


@dataclass(slots=True)
class OrderBatch:
    """The messages that the last ordered pop of a queue returned (RocketMQ's OrderInfo). Times are in ms."""

    pop_ms: int
    invisible_ms: int
    offsets: list[int]
    visible_ms: dict[int, int] = field(default_factory=dict)
    """When a message is visible again whose invisible time was changed, by offset."""
    counts: dict[int, int] = field(default_factory=dict)
    """Number of earlier deliveries, by offset; 0 is left out."""
    used_ms: int = 0
    acked_bits: int = 0
    """Bit i: the i-th offset is acked."""
    attempt_id: str | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> OrderBatch:
        """Return the batch in RocketMQ's JSON object. Raises ValueError if a field has a wrong type."""
        numbers = typed(content.get("o") or [], list[int], "o")
        # RocketMQ stores the first offset, and for the others the distance from it.
        offsets = [numbers[0] + (each if index else 0) for index, each in enumerate(numbers)]
        return cls(
            typed(content.get("popTime", 0), int, "popTime"),
            typed(content.get("i") or 0, int, "i"),
            offsets,
            typed(content.get("ot") or {}, dict[int, int], "ot"),
            typed(content.get("oc") or {}, dict[int, int], "oc"),
            typed(content.get("l", 0), int, "l"),
            typed(content.get("cm", 0), int, "cm"),
            None if content.get("a") is None else typed(content["a"], str, "a"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's JSON object of the batch."""
        first = self.offsets[0] if self.offsets else 0
        content: dict[str, Any] = {
            "popTime": self.pop_ms,
            "i": self.invisible_ms,
            "o": [each - first if index else each for index, each in enumerate(self.offsets)],
            "ot": {str(offset): time_ms for offset, time_ms in self.visible_ms.items()},
            "oc": {str(offset): count for offset, count in self.counts.items()},
            "l": self.used_ms,
            "cm": self.acked_bits,
        }
        if self.attempt_id is not None:
            content["a"] = self.attempt_id
        return content

    @property
    def unacked(self) -> list[int]:
        """The offsets that are not acked."""
        return [each for index, each in enumerate(self.offsets) if not self.acked_bits >> index & 1]


@dataclass(slots=True)
class ConsumerOrderTable:
    """The last ordered batches: `batches["topic@group"][queue_id]`."""

    batches: dict[str, dict[int, OrderBatch]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ConsumerOrderTable:
        """Return the table in a parsed `consumerOrderInfo.json`. Raises StoreError for a wrong type."""
        with store_errors_for("consumerOrderInfo.json"):
            found = table_entries(content, _TABLE) if content else {}
            batches = {
                key: {int(queue_id): OrderBatch.from_json(batch) for queue_id, batch in queues.items()}
                for key, queues in found.items()
            }
            return cls(batches, fields_except(content, _TABLE))

    def to_json(self) -> dict[str, Any]:
        """Return the content of `consumerOrderInfo.json`; later changes of the table do not affect it."""
        table = {
            key: {str(queue_id): batch.to_json() for queue_id, batch in queues.items()}
            for key, queues in self.batches.items()
        }
        return {**self.unknown, _TABLE: table}

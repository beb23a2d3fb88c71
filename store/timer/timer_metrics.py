"""TimerMetrics: the table `config/timermetrics`, the number of pending timer messages by topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.common.json_file import JsonConfigFile
from store.common.logs import get_logger
from store.message.data_version import DATA_VERSION, DataVersion
from store.message.json_fields import store_errors_for, typed
from store.store_errors import StoreError

_log = get_logger(__name__)

_TABLE = "timingCount"


@dataclass(slots=True)
class TimerMetrics:
    """Pending timer messages by the topic that they are sent to."""

    counts: dict[str, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    changed_ms: dict[str, int] = field(default_factory=dict)
    """Time of the last change of a topic's count, in ms since the epoch."""

    @classmethod
    def load(cls, path: Path) -> TimerMetrics:
        """Return the table in the file; an empty one if there is no valid file, because it is a statistic."""
        try:
            return JsonConfigFile(path).read(cls.from_json) or cls()
        except StoreError as error:
            _log.warning("timer_metrics_damaged", error=str(error))
            return cls()

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TimerMetrics:
        """Return the table in a parsed `timermetrics`. Raises StoreError if a field has a wrong type."""
        with store_errors_for("timermetrics"):
            table = typed(content.get(_TABLE, {}), dict[str, dict[str, int]], _TABLE)
            counts = {topic: entry.get("count", 0) for topic, entry in table.items()}
            times = {topic: entry.get("timeStamp", 0) for topic, entry in table.items()}
            return cls(counts, DataVersion.of_table(content), times)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `timermetrics`; later changes of the table do not affect it."""
        table = {
            topic: {"count": count, "timeStamp": self.changed_ms.get(topic, 0)}
            for topic, count in self.counts.items()
        }
        return {DATA_VERSION: self.data_version.to_json(), _TABLE: table}

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Add `change` to the number of pending messages of a topic. It never becomes negative."""
        self.counts[topic] = max(self.counts.get(topic, 0) + change, 0)
        self.changed_ms[topic] = now_ms
        self.data_version = self.data_version.next(now_ms)

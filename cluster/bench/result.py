"""What a bench measured: runs, their median and spread, as a table row and as a line of JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """One measured run; what does not apply is None."""

    seconds: float
    messages: int | None = None
    bytes: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def messages_per_s(self) -> float | None:
        """Messages a second over the whole run."""
        return None if self.messages is None else self.messages / self.seconds

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes a second over the whole run."""
        return None if self.bytes is None else self.bytes / self.seconds


@dataclass(frozen=True)
class BenchResult:
    """The runs of one bench under the same parameters."""

    name: str
    runs: Sequence[Run]
    parameters: Mapping[str, object] = field(default_factory=dict)

    def median(self, figure: str) -> float | None:
        """The median over the runs of one of Run's figures, or None where it does not apply."""
        values = [value for run in self.runs if (value := getattr(run, figure)) is not None]
        return statistics.median(values) if values else None

    @property
    def spread(self) -> float:
        """How far the runs lie apart: (largest - smallest) / median of the bench's main figure."""
        for figure in ("messages_per_s", "bytes_per_s", "seconds"):
            values = [value for run in self.runs if (value := getattr(run, figure)) is not None]
            if values:
                return float((max(values) - min(values)) / statistics.median(values))
        return 0.0

    def as_json(self) -> str:
        """One line: name, messages_per_s, bytes_per_s, p50_ms, p99_ms, seconds (those known), parameters."""
        line: dict[str, object] = {"name": self.name}
        for figure in ("messages_per_s", "bytes_per_s", "p50_ms", "p99_ms", "seconds"):
            value = self.median(figure)
            if value is not None:
                line[figure] = _rounded(value)
        line["parameters"] = {**self.parameters, "runs": len(self.runs), "spread": round(self.spread, 3)}
        return json.dumps(line)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; `ordered` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _rounded(value: float) -> float:
    return round(value) if value >= 1000 else float(f"{value:.4g}")

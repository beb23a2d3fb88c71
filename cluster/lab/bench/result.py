"""Results of a benchmark: its runs, their medians and spread, and their JSON line."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FIGURES = ("messages_per_s", "bytes_per_s", "p50_ms", "p99_ms", "seconds")


@dataclass(frozen=True)
class Run:
    """One measured run; a figure that does not apply is None."""

    seconds: float
    messages: int | None = None
    bytes: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def messages_per_s(self) -> float | None:
        """Messages per second over the whole run, or None."""
        return None if self.messages is None else self.messages / self.seconds

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second over the whole run, or None."""
        return None if self.bytes is None else self.bytes / self.seconds


@dataclass(frozen=True)
class BenchResult:
    """Runs of one benchmark with the same parameters."""

    name: str
    runs: Sequence[Run]
    parameters: Mapping[str, object] = field(default_factory=dict)

    def median(self, figure: str) -> float | None:
        """Return the median of the attribute `figure` of `Run` over all runs, or None if no run has it."""
        values = [value for run in self.runs if (value := getattr(run, figure)) is not None]
        return statistics.median(values) if values else None

    @property
    def spread(self) -> float:
        """Spread of the main figure over the runs: (largest - smallest) / median."""
        for figure in ("messages_per_s", "bytes_per_s", "seconds"):
            values = [value for run in self.runs if (value := getattr(run, figure)) is not None]
            if values:
                return float((max(values) - min(values)) / statistics.median(values))
        return 0.0

    def figures(self) -> dict[str, float]:
        """Return the medians by figure name; figures that no run has are left out."""
        found = {name: self.median(name) for name in FIGURES}
        return {name: _rounded(value) for name, value in found.items() if value is not None}

    def all_parameters(self) -> dict[str, object]:
        """Return the parameters with the number of runs and their spread added."""
        return {**self.parameters, "runs": len(self.runs), "spread": round(self.spread, 3)}


def as_json(name: str, results: Sequence[BenchResult]) -> str:
    """Return the JSON line of a benchmark: its name, medians and parameters.

    If the benchmark has several results, the top-level medians are those of the first result, and
    `parameters.parts` has the medians and parameters of each result by name.
    """
    first = results[0]
    parameters = first.all_parameters()
    if len(results) > 1:
        parameters["parts"] = {each.name: {**each.figures(), **each.all_parameters()} for each in results}
    return json.dumps({"name": name, **first.figures(), "parameters": parameters})


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed.

    `ordered` is sorted and not empty.
    """
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _rounded(value: float) -> float:
    return round(value) if value >= 1000 else float(f"{value:.4g}")

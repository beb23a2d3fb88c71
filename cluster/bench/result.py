"""What a bench measured: runs, their median and spread, as a table row and as a line of JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CALM_SHARE = 0.03
"""So little is lost in what runs differ by of themselves."""
CALM_AT_LEAST = 3
FIGURES = ("messages_per_s", "bytes_per_s", "p50_ms", "p99_ms", "seconds")


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


def calm_median(values: Sequence[float], stolen: Sequence[float]) -> tuple[float, int]:
    """The median of those values during which the host took at most `CALM_SHARE` of the processors, and how
    many they are; of all values where they are less than `CALM_AT_LEAST`.
    """
    calm = [value for value, share in zip(values, stolen, strict=True) if share <= CALM_SHARE]
    used = calm if len(calm) >= CALM_AT_LEAST else values
    return round(statistics.median(used), 3), len(used)


def compared(name: str, ratios: Sequence[float], stolen: Sequence[float]) -> dict[str, object]:
    """A bench's parameters about two sides that were measured together, several times: the calm median of
    their ratios, of how many that is, and each ratio with what was stolen during it.
    """
    ratio, comparisons = calm_median(ratios, stolen)
    return {
        name: ratio,
        "of_comparisons": comparisons,
        f"{name}_each": [round(each, 2) for each in ratios],
        "stolen_each": [round(each, 2) for each in stolen],
    }


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

    def figures(self) -> dict[str, float]:
        """The medians of those figures that apply."""
        found = {name: self.median(name) for name in FIGURES}
        return {name: _rounded(value) for name, value in found.items() if value is not None}

    def all_parameters(self) -> dict[str, object]:
        """The parameters, with the number of runs and their spread."""
        return {**self.parameters, "runs": len(self.runs), "spread": round(self.spread, 3)}


def as_json(name: str, results: Sequence[BenchResult]) -> str:
    """One line for a bench: its name, the figures that apply, its parameters.

    A bench that measures several things gives the figures of the first, and all under `parameters.parts`.
    """
    first = results[0]
    parameters = first.all_parameters()
    if len(results) > 1:
        parameters["parts"] = {each.name: {**each.figures(), **each.all_parameters()} for each in results}
    return json.dumps({"name": name, **first.figures(), "parameters": parameters})


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; `ordered` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _rounded(value: float) -> float:
    return round(value) if value >= 1000 else float(f"{value:.4g}")

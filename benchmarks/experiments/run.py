"""Run: what one run of an experiment recorded, simulated or measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from benchmarks.experiments.history.judgement import Judgement
from benchmarks.experiments.series import Point
from cluster.autoscale.decisions import Decision


@dataclass(frozen=True)
class Change:
    """A decision that changed the target, with the time of the run and the target before it."""

    time_s: float
    before: int
    decision: Decision


@dataclass(frozen=True)
class Injected:
    """A fault that was injected at a time of the run."""

    time_s: float
    text: str


@dataclass(frozen=True)
class Trial:
    """The records of one run.

    Attributes:
        kind: Whether a model or real brokers ran.
        series: One point for each sample, the first one at time 0.
        changes: The decisions that changed the target.
        judgement: Result of the history checks; None for a simulation, which has no single messages.
        latency_ms: Measured end-to-end latency (p50, p99); None: computed from the series.
        notes: Remarks for the report.
        faults: The injected faults.
    """

    kind: Literal["simulated", "measured"]
    series: list[Point]
    changes: list[Change] = field(default_factory=list)
    judgement: Judgement | None = None
    latency_ms: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[Injected, ...] = ()

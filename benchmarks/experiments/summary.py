"""Summary of an experiment: its measures, and the limits that must hold for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.run import Injected, Trial
from benchmarks.experiments.series import (
    latency_percentiles,
    node_seconds,
    recovery_s,
    reliefs,
    totals,
)


@dataclass(frozen=True)
class Measures:
    """The measures of one run. None: not measured, because a simulation has no single messages.

    Attributes:
        offered: Messages that the load profile offered.
        delivered_ratio: Delivered ÷ offered messages.
        sent: Messages that the producers sent.
        failed_sends: Messages of these that were not acknowledged in spite of retries.
        lost: Acknowledged messages that were never consumed.
        duplicated: Messages that were stored more often than they were sent.
        out_of_order: Messages that were consumed before an earlier one of the same key.
        latency_p50_ms: Median end-to-end latency.
        latency_p99_ms: 99th percentile of the end-to-end latency.
        relief_max_s: Longest time from a rise of the load until the backlog shrank, without node boots; 0 if
            no rise caused a backlog.
        backlog_max: Highest number of messages that were offered and not delivered.
        node_seconds: Sum of the times that nodes were part of the cluster.
        node_seconds_ratio: `node_seconds` ÷ those of a fixed cluster of `rules.max` brokers.
        changes: Number of decisions that changed the target.
    """

    offered: float
    delivered_ratio: float
    sent: int | None
    failed_sends: int | None
    lost: int | None
    duplicated: int | None
    out_of_order: int | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    relief_max_s: float
    backlog_max: float
    node_seconds: float
    node_seconds_ratio: float
    changes: int


@dataclass(frozen=True)
class Check:
    """A limit of a measure. `holds` is None if the measure is unknown."""

    measure: str
    value: float | None
    limit: str
    holds: bool | None


@dataclass(frozen=True)
class Summary:
    """The content of summary.json: the elastic run, the fixed baseline, and the checks."""

    experiment: str
    kind: str
    run_s: float
    caps: Mapping[str, float]
    elastic: Measures
    baseline: Measures
    baseline_kind: str
    checks: list[Check]
    relief_s: list[float]
    notes: list[str]

    @property
    def holds(self) -> bool:
        """Return True if no known measure exceeds its limit."""
        return all(check.holds is not False for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return asdict(self)


def summarize(experiment: Experiment, elastic: Trial, baseline: Trial) -> Summary:
    """Return the summary of an elastic run and the run of a fixed cluster of `rules.max` brokers."""
    measures = measure(experiment, elastic)
    return Summary(
        experiment.name,
        elastic.kind,
        experiment.run_s,
        experiment.caps.model_dump(),
        measures,
        measure(experiment, baseline),
        baseline.kind,
        [*checks(experiment, measures), *fault_checks(experiment, elastic)],
        [round(each.seconds, 3) for each in reliefs(elastic.series)],
        [
            *elastic.notes,
            *map(partial(_fault_note, elastic), elastic.faults),
            *_impossible_faults(experiment, elastic),
        ],
    )


def measure(experiment: Experiment, run: Trial) -> Measures:
    """Compute the measures of one run."""
    offered, delivered = totals(run.series)
    p50_ms, p99_ms = run.latency_ms or _latency_ms(experiment, run)
    nodes = node_seconds(run.series)
    fixed = experiment.rules.max * (run.series[-1].time_s - run.series[0].time_s)
    judged = run.judgement
    return Measures(
        offered=round(offered),
        delivered_ratio=delivered / offered if offered else 1.0,
        sent=judged and judged.sent,
        failed_sends=judged and judged.failed,
        lost=judged and judged.lost,
        duplicated=judged and judged.duplicated,
        out_of_order=judged and judged.out_of_order,
        latency_p50_ms=p50_ms,
        latency_p99_ms=p99_ms,
        relief_max_s=max((each.seconds for each in reliefs(run.series)), default=0.0),
        backlog_max=max(point.backlog for point in run.series),
        node_seconds=nodes,
        node_seconds_ratio=nodes / fixed if fixed else 0.0,
        changes=len(run.changes),
    )


def _latency_ms(experiment: Experiment, run: Trial) -> tuple[float | None, float | None]:
    waits = latency_percentiles(run.series, (50, 99))
    p50, p99 = (
        None if math.isnan(wait_s) else (wait_s + experiment.model.latency_s) * 1000 for wait_s in waits
    )
    return p50, p99


def checks(experiment: Experiment, measures: Measures) -> list[Check]:
    """Compare the measures with the limits of the experiment."""
    limits = experiment.limits
    at_most: list[tuple[str, float | None, float | None]] = [
        ("lost", measures.lost, 0),
        ("out_of_order", measures.out_of_order, 0),
        ("failed_sends", measures.failed_sends, 0),
        ("relief_max_s", measures.relief_max_s, limits.relief_s),
        ("node_seconds_ratio", measures.node_seconds_ratio, limits.node_seconds_ratio),
    ]
    found = [
        Check(name, value, f"≤ {limit:g}", None if value is None else value <= limit)
        for name, value, limit in at_most
        if limit is not None
    ]
    ratio = measures.delivered_ratio
    # The sums of a whole day have rounding errors.
    holds = ratio >= limits.delivered_ratio - 1e-9
    return [*found, Check("delivered_ratio", ratio, f"≥ {limits.delivered_ratio:g}", holds)]


def fault_checks(experiment: Experiment, run: Trial) -> list[Check]:
    """Check that each fault of a measured run was injected, and that the target was reached after it."""
    if not experiment.faults or run.kind == "simulated":
        return []
    wanted = len(experiment.faults)
    recovered = sum(recovery_s(run.series, fault.time_s) is not None for fault in run.faults)
    return [Check("faults_recovered", recovered, f"≥ {wanted}", recovered >= wanted)]


def _fault_note(run: Trial, fault: Injected) -> str:
    after_s = recovery_s(run.series, fault.time_s)
    result = (
        "the target was not reached after it"
        if after_s is None
        else f"the target was reached after {after_s:.0f} s"
    )
    return f"{fault.time_s:.0f} s: {fault.text}; {result}"


def _impossible_faults(experiment: Experiment, run: Trial) -> list[str]:
    """Return a note if not all faults of a measured run were injected."""
    missing = len(experiment.faults) - len(run.faults)
    if run.kind == "simulated" or missing <= 0:
        return []
    faults = ", ".join(f"{fault.kill} during {fault.during}" for fault in experiment.faults)
    return [f"{missing} of the faults ({faults}) were not possible; a longer duration_s may help"]


def deviations(simulated: Mapping[str, Any], measured: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return (measure, simulated, measured) of each number that two summary.json have in common."""
    left, right = simulated["elastic"], measured["elastic"]
    return [
        (name, left[name], right[name])
        for name in left
        if isinstance(left[name], int | float) and isinstance(right.get(name), int | float)
    ]

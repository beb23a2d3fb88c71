"""Tables and JSON output of the comparison with RocketMQ."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.goals import Case, GoalResult
from benchmarks.load import LOADS, Figures

REPORTED = (
    "messages_per_s",
    "p50_ms",
    "p99_ms",
    "mean_ms",
    "send_p50_ms",
    "broker_cpu_us_per_message",
    "client_cpu_us_per_message",
    "broker_anonymous_mib",
    "other_cores",
    "turns_per_s",
    "messages_per_turn",
)


@dataclass(frozen=True)
class Report:
    """The rounds of one load on each side.

    `others_mib` is the RssAnon of the processes that RayMQ runs in addition to the broker.
    """

    case: Case
    release: str
    numbers: Mapping[str, int]
    rounds: Mapping[str, Sequence[Figures]]
    others_mib: Mapping[str, float]
    benchmark: str = "versus-rocketmq"

    def medians(self) -> Mapping[str, Mapping[str, float]]:
        """Return the median of each measured figure, by side."""
        return {side: _medians(figures) for side, figures in self.rounds.items()}

    def ratios(self) -> Mapping[str, float]:
        """Return the first side ÷ the second for each figure; empty if only one side was measured."""
        medians = list(self.medians().values())
        if len(medians) != 2:
            return {}
        ours, theirs = medians
        return {key: ours[key] / theirs[key] for key in REPORTED if theirs.get(key)}

    def as_json(self) -> Mapping[str, object]:
        """Return the object that `--json` prints for this load."""
        load = LOADS.get(self.case.load)
        program = {"program": load.program, **load.numbers} if load else {}
        return {
            "name": f"{self.benchmark} {self.case.load}",
            "parameters": {
                **program, **self.numbers, "flush": self.case.flush,
                "pair": self.case.pair, "rocketmq": self.release,
            },
            "medians": self.medians(),
            "rounds": {side: [asdict(figure) for figure in found] for side, found in self.rounds.items()},
            "others_anonymous_mib": self.others_mib,
            "ratios": self.ratios(),
        }  # fmt: skip


def _medians(figures: Sequence[Figures]) -> Mapping[str, float]:
    rows = [asdict(figure) for figure in figures]
    measured = [key for key, value in rows[0].items() if value is not None]
    return {key: statistics.median(row[key] for row in rows) for key in measured}


def round_line(figures: Figures) -> str:
    """Return the line that shows the results of one round."""
    times = ""
    if figures.p50_ms is not None and figures.p99_ms is not None:
        times = f"  p50 {figures.p50_ms:.3f} ms  p99 {figures.p99_ms:.3f} ms"
    turns = ""
    if figures.messages_per_turn is not None:
        turns = f"  {figures.messages_per_turn:.1f} messages per turn"
    return (
        f"{figures.messages_per_s:10,.0f}/s{times}"
        f"  broker {figures.broker_cpu_us_per_message:.1f} µs per message"
        f"  client {figures.client_cpu_us_per_message:.1f} µs"
        f"  other work {figures.other_cores:.2f} cores{turns}"
    )


def print_table(report: Report) -> None:
    """Print the medians and ratios of one load as a table."""
    medians, ratios = report.medians(), report.ratios()
    case = report.case
    pair = f", {case.pair} pair" if case.pair else ""
    print(f"{case.load}{pair}, {case.flush} flush, RocketMQ {report.release}  {dict(report.numbers)}")
    print(f"{'median of rounds':28}" + "".join(f"{side:>14}" for side in medians) + f"{'ours ÷ theirs':>16}")
    for key in REPORTED:
        if not any(key in figures for figures in medians.values()):
            continue
        row = "".join(
            f"{figures[key]:14,.3f}" if key in figures else f"{'-':>14}" for figures in medians.values()
        )
        ratio = f"{ratios[key]:16.2f}" if key in ratios else ""
        print(f"{key:28}{row}{ratio}")
    if report.others_mib:
        others = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in report.others_mib.items())
        print(f"RssAnon in addition to our broker: {others}")
    print(flush=True)


def print_goals(found: Sequence[GoalResult], *, as_json: bool) -> None:
    """Print the result of each measured goal, as a table or as one line of JSON."""
    if as_json:
        goals = [{**asdict(each.goal), "value": each.value, "reached": each.verdict} for each in found]
        print(json.dumps({"name": "versus-rocketmq", "goals": goals}), flush=True)
        return
    print(f"{'load':26}{'flush':7}{'figure':27}{'ours ÷ theirs':>14}{'ours':>11}{'floor':>11}{'aim':>11}")
    for each in found:
        goal = each.goal
        value = f"{each.value:14.2f}{'':11}" if goal.is_ratio else f"{'':14}{each.value:11,.1f}"
        load = f"{goal.load}, {goal.pair} pair" if goal.pair else goal.load
        aim = "client" if goal.aim is None else f"{goal.aim:,g}"
        print(f"{load:26}{goal.flush:7}{goal.figure:27}{value}{goal.floor:11,g}{aim:>11}  {each.verdict}")

"""Goals of the comparison with RocketMQ, and the report of several rounds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.goals import CASES, PYTHON_LOADS, Case, Goal, Measured, goal_results
from benchmarks.load import LOADS, Figures
from benchmarks.versus_report import Report, print_goals, print_table
from cluster.lab.bench.registry import BENCHES

MORE = Goal("java-producer", "messages_per_s", floor=1.2, aim=1.6)
CLIENT_BOUND = Goal("java-push", "messages_per_s", floor=1.2, aim=None)
LESS = Goal("java-producer-1", "p99_ms", floor=1.0, aim=0.5)


@pytest.mark.parametrize(
    ("goal", "ratio", "verdict"),
    [
        (MORE, 1.19, "missed"),
        (MORE, 1.2, "floor"),
        (MORE, 1.6, "aim"),
        (CLIENT_BOUND, 1.1, "missed"),
        (CLIENT_BOUND, 9.0, "floor"),
        (LESS, 1.01, "missed"),
        (LESS, 1.0, "floor"),
        (LESS, 0.5, "aim"),
    ],
)
def test_verdict_is_aim_floor_or_missed(goal: Goal, ratio: float, verdict: str) -> None:
    assert goal.verdict(ratio) == verdict


def test_every_case_has_an_existing_load() -> None:
    assert {case.load for case in CASES} <= {*LOADS, *PYTHON_LOADS}
    assert set(PYTHON_LOADS) <= BENCHES.keys()
    assert Case("java-producer", "sync") in CASES


def figures(messages_per_s: float, p99_ms: float) -> Figures:
    return Figures(messages_per_s, 1.0, p99_ms, 1.0, 9.0, 100, 1.0, 20.0, 30.0, 100.0, 0.1)


def test_report_compares_medians_of_figures_measured_on_both_sides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = [
        replace(figures(rate, p99), messages_per_turn=4.0) for rate, p99 in ((20, 0.4), (90, 0.9), (30, 0.5))
    ]
    theirs = [figures(10, 1.0), figures(15, 2.0), figures(15, 1.0)]
    case = Case("java-producer", "async")
    report = Report(case, "5.3.3", {"seconds": 1}, {"raymq": ours, "rocketmq": theirs}, {"ray": 300.0})

    ratios = report.ratios()
    assert ratios["messages_per_s"] == 2.0
    assert ratios["p99_ms"] == 0.5
    assert report.as_json()["others_anonymous_mib"] == {"ray": 300.0}
    assert Report(case, "5.3.3", {}, {"raymq": ours}, {}).ratios() == {}

    print_table(report)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["messages_per_turn", "4.000", "-"] in rows

    results = goal_results({case: Measured(report.medians()["raymq"], ratios)})
    print_goals(results, as_json=True)
    [output] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(goal["figure"], goal["value"], goal["reached"]) for goal in output["goals"]] == [
        ("messages_per_s", 2.0, "missed"),
        ("broker_cpu_us_per_message", 20.0, "missed"),
        ("broker_anonymous_mib", 1.0, "missed"),
    ]
    print_goals(results, as_json=False)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[-2:] == ["floor", "aim"]
    assert lines[0].split() == ["java-producer", "async", "messages_per_s", "2.00", "2.2", "3", "missed"]

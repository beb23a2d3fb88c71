"""Results of a benchmark and their JSON line."""

from __future__ import annotations

import json

import pytest

from benchmarks.internals.backlog import Cost, ratios
from benchmarks.internals.comparing import calm_median
from benchmarks.internals.many_queues import seconds_that_fit
from cluster.lab.bench.result import BenchResult, Run, as_json, percentile


def test_json_line_has_medians_and_parameters() -> None:
    runs = [Run(2.0, messages=count) for count in (2_000, 8_000, 4_000)]
    line = json.loads(as_json("send-table", [BenchResult("send-table", runs, {"flush": "async"})]))
    assert line == {
        "name": "send-table",
        "messages_per_s": 2_000,
        "seconds": 2.0,
        "parameters": {"flush": "async", "runs": 3, "spread": 1.5},
    }


def test_backlog_ratios_are_computed_per_pair_of_runs() -> None:
    """The machine became slower between the pairs: the ratio of the medians would be 0.1."""

    def cost(messages: int, stolen: float) -> Cost:
        return Cost(Run(1.0, messages), messages / 1e6, stolen)

    full = [cost(5_000, 0.0), cost(500, 0.2), cost(500, 0.0)]
    empty = [cost(10_000, 0.01), cost(5_000, 0.0), cost(1_000, 0.0)]
    shown = ratios(full, empty)
    assert (shown["ratio_to_empty"], shown["comparisons"], shown["cpu_ratio_to_empty"]) == (0.5, 3, 1.0)
    assert (shown["ratio_to_empty_each"], shown["stolen_each"]) == ([0.5, 0.1, 0.5], [0.01, 0.2, 0.0])


def test_calm_median_uses_disturbed_values_only_if_few_others() -> None:
    assert calm_median([0.9, 0.4, 1.0, 1.1, 0.2], [0.0, 0.2, 0.03, 0.01, 0.5]) == (1.0, 3)
    assert calm_median([0.9, 0.4, 1.0, 0.3, 0.2], [0.0, 0.2, 0.03, 0.1, 0.5]) == (0.4, 5)


@pytest.mark.parametrize(("free_gib", "seconds"), [(68, 5.0), (20, 1.0), (8, 0.0), (2, 0.0)])
def test_many_queues_runs_leave_reserved_disk_space(free_gib: int, seconds: float) -> None:
    """Three runs of four timed sends at 1 GiB/s; 8 GiB are reserved for files allocated ahead of use."""
    assert seconds_that_fit(free_gib << 30, runs=3, bytes_a_second=1 << 30) == seconds


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.99, 4), (0.25, 1), (1.0, 4)])
def test_percentile_returns_one_of_the_values(share: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], share) == value


def test_spread_without_messages_uses_bytes_per_second() -> None:
    result = BenchResult("memory-copy", [Run(1.0, bytes=100), Run(1.0, bytes=110)])
    assert (result.median("bytes_per_s"), result.median("messages_per_s")) == (105, None)
    assert result.spread == pytest.approx(10 / 105)


def test_json_line_contains_all_parts() -> None:
    parts = [BenchResult("spark-read-bodies", [Run(1.0, 10)]), BenchResult("spark-read-all", [Run(1.0, 5)])]
    line = json.loads(as_json("spark-read", parts))
    assert (line["name"], line["messages_per_s"]) == ("spark-read", 10)
    assert {name: part["messages_per_s"] for name, part in line["parameters"]["parts"].items()} == {
        "spark-read-bodies": 10,
        "spark-read-all": 5,
    }

"""What a bench says about its runs."""

from __future__ import annotations

import json

import pytest

from cluster.bench.options import BenchOptions
from cluster.bench.result import BenchResult, Run, as_json, percentile


def test_the_json_line_has_medians_of_what_applies_and_the_parameters() -> None:
    runs = [Run(2.0, messages=count) for count in (2_000, 8_000, 4_000)]
    line = json.loads(as_json("send-table", [BenchResult("send-table", runs, {"flush": "async"})]))
    assert line == {
        "name": "send-table",
        "messages_per_s": 2_000,
        "seconds": 2.0,
        "parameters": {"flush": "async", "runs": 3, "spread": 1.5},
    }


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.99, 4), (0.25, 1), (1.0, 4)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], share) == value


def test_a_bench_without_messages_is_judged_by_its_bytes() -> None:
    result = BenchResult("memory-copy", [Run(1.0, bytes=100), Run(1.0, bytes=110)])
    assert (result.median("bytes_per_s"), result.median("messages_per_s")) == (105, None)
    assert result.spread == pytest.approx(10 / 105)


@pytest.mark.slow
def test_the_machines_limits_are_measured() -> None:
    from cluster.bench import machine

    results = {each.name: each for each in machine.run(BenchOptions(seconds=0.2, runs=1))}
    assert set(results) == {"memory-copy", "first-touch", "append-fdatasync", "loopback-tcp"}
    assert (results["memory-copy"].median("bytes_per_s") or 0) > 1e8
    assert (results["append-fdatasync"].median("p50_ms") or 0) > 0


def test_a_bench_of_several_parts_is_one_line_too() -> None:
    parts = [BenchResult("spark-read-bodies", [Run(1.0, 10)]), BenchResult("spark-read-all", [Run(1.0, 5)])]
    line = json.loads(as_json("spark-read", parts))
    assert (line["name"], line["messages_per_s"]) == ("spark-read", 10)
    assert {name: part["messages_per_s"] for name, part in line["parameters"]["parts"].items()} == {
        "spark-read-bodies": 10,
        "spark-read-all": 5,
    }

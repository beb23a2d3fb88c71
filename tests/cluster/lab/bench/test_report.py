"""Table of benchmark results on a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from cluster.lab.bench.bench_report import results_table
from cluster.lab.bench.result import BenchResult, Run


def printed(*results: BenchResult, width: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=width).print(results_table(results))
    return out.getvalue()


def test_table_fits_80_columns_with_parameters_below() -> None:
    runs = [Run(seconds=2.0, messages=4_690_000, bytes=600_320_000, p50_ms=0.15, p99_ms=0.5)]
    shown = printed(BenchResult("send-batch", runs, {"flush": "async", "body_bytes": 128, "queues": 8}))
    for text in ("send-batch", "2,345,000", "300.2", "0.150", "0.500", "0.0%"):
        assert text in shown
    assert "send-batch: flush=async, body_bytes=128, queues=8" in shown


def test_table_omits_columns_without_values() -> None:
    shown = printed(BenchResult("recovery", [Run(seconds=2.0, bytes=4_000_000)]))
    assert "MB/s" in shown
    assert "p99" not in shown
    assert "messages/s" not in shown

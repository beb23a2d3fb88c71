"""Results as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from cluster.bench.result import BenchResult


def results_table(results: Sequence[BenchResult]) -> Table:
    """One row a result: medians over its runs, and how far they lie apart."""
    table = Table(title="medians; spread is (largest - smallest) / median")
    table.add_column("bench")
    for heading in ("messages/s", "MB/s", "p50 ms", "p99 ms", "seconds", "runs", "spread"):
        table.add_column(heading, justify="right")
    table.add_column("parameters", overflow="fold")
    for each in results:
        table.add_row(
            each.name,
            _number(each.median("messages_per_s"), "{:,.0f}"),
            _number(_megabytes(each.median("bytes_per_s")), "{:,.1f}"),
            _number(each.median("p50_ms"), "{:.3f}"),
            _number(each.median("p99_ms"), "{:.3f}"),
            _number(each.median("seconds"), "{:.1f}"),
            str(len(each.runs)),
            f"{each.spread:.1%}",
            ", ".join(f"{name}={value}" for name, value in each.parameters.items()),
        )
    return table


def flush_ratios(results: Sequence[BenchResult]) -> list[str]:
    """What sync flush costs: a line for each bench that was run under both modes."""
    rates: dict[str, dict[object, float]] = {}
    for each in results:
        rate = each.median("messages_per_s")
        if rate is not None and "flush" in each.parameters:
            rates.setdefault(each.name, {})[each.parameters["flush"]] = rate
    return [
        f"{name}: sync ÷ async = {modes['sync'] / modes['async']:.2f}"
        for name, modes in rates.items()
        if {"sync", "async"} <= set(modes)
    ]


def _megabytes(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)

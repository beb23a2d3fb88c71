"""Table of benchmark results for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cluster.lab.bench.result import BenchResult

COLUMNS: Mapping[str, Callable[[BenchResult], str]] = {
    "messages/s": lambda each: _number(each.median("messages_per_s"), "{:,.0f}"),
    "MB/s": lambda each: _number(each.median("bytes_per_s"), "{:,.1f}", 1e6),
    "p50 ms": lambda each: _number(each.median("p50_ms"), "{:.3f}"),
    "p99 ms": lambda each: _number(each.median("p99_ms"), "{:.3f}"),
    "seconds": lambda each: _number(each.median("seconds"), "{:.1f}"),
    "runs": lambda each: str(len(each.runs)),
    "spread": lambda each: f"{each.spread:.1%}",
}


def results_table(results: Sequence[BenchResult]) -> Group:
    """Return a table with one row per result (medians and spread over its runs), and the parameters below it.

    A column is left out if no result has a value for it.
    """
    columns = {name: of for name, of in COLUMNS.items() if any(of(each) for each in results)}
    table = Table(title="medians; spread is (largest - smallest) / median", title_justify="left")
    table.add_column("bench", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right")
    lines = []
    for each in results:
        table.add_row(each.name, *(of(each) for of in columns.values()))
        lines.append(
            f"{each.name}: " + ", ".join(f"{name}={value}" for name, value in each.parameters.items())
        )
    return Group(table, *(Text(line) for line in lines))


def flush_ratios(results: Sequence[BenchResult]) -> list[str]:
    """Return a line with the ratio of sync to async flush for each benchmark that ran in both modes."""
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


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)

"""Rows of `raymq status`, without a cluster."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from cluster.cli.status import COLUMNS, formatted, lag_of
from cluster.cli.tables import table_of


def test_loop_lag_is_shown_for_brokers_only() -> None:
    row = {
        "actor": "broker-a-0", "kind": "broker", "state": "serving", "address": "127.0.0.1:10911",
        "node": "127.0.0.1", "process": 7, "code": "c", "up_s": 3,
        "details": {"epoch": 2, "loop_lag_p99_us": 1_455, "longest_lag_us": 21_180},
    }  # fmt: skip
    other = row | {"actor": "nameserver-0", "details": {}}
    out = StringIO()
    Console(file=out, width=200).print(table_of(COLUMNS, [formatted(row), formatted(other)]))
    assert "1.5 / 21 ms" in out.getvalue()
    assert lag_of({}) == ""

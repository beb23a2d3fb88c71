"""Tables on terminals of several widths: no name is truncated."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cluster.cli.console import Output
from cluster.cli.operations.status import COLUMNS, REPLICATION, SPARED, formatted
from cluster.cli.tables import fitted, shown, span_of

ACTORS = [
    {
        "actor": f"broker-{letter}-0", "kind": "broker", "state": "serving", "address": "127.0.0.1:10911",
        "node": "192.0.2.2", "process": 24_481, "code": "9c495b40ec05", "up_s": 93_784,
        "details": {"epoch": 2, "loop_lag_p99_us": 1_455, "longest_lag_us": 21_180},
    }
    for letter in "ab"
]  # fmt: skip


def printed(width: int) -> str:
    out = StringIO()
    rows = [formatted(row) for row in ACTORS]
    Console(file=out, width=width).print(fitted(COLUMNS, rows, width, SPARED))
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140])
def test_table_never_truncates_actor_names(width: int) -> None:
    text = printed(width)
    for known_by in ("broker-a-0", "broker-b-0", "serving"):
        assert known_by in text
    assert "…" not in text
    assert all(len(line.rstrip()) <= width for line in text.splitlines())


def test_narrow_table_omits_optional_columns() -> None:
    assert all(text in printed(140) for text in ("9c495b40ec05", "24481", "1.5 / 21 ms", "1 d 2 h"))
    assert "127.0.0.1:10911" in printed(80)
    assert "9c495b40ec05" not in printed(80)
    assert "┃" in printed(60)
    assert "┃" not in printed(40)  # too narrow for any table: one by one, and so with everything
    assert "9c495b40ec05" in printed(40)


def test_replicas_of_a_raft_group_fit_80_columns_as_a_table() -> None:
    roles = ["leader, term 17", "follower, term 17, 0 B behind, in sync", "follower, term 17, lag unknown"]
    rows = [
        formatted({**ACTORS[0], "actor": f"broker-a-{number}", "address": "192.168.100.100:10911"})
        | {"role": role, "in_sync": 3, "slave_lag": None}
        for number, role in enumerate(roles)
    ]
    out = StringIO()
    Console(file=out, width=80).print(fitted((*COLUMNS, *REPLICATION), rows, 80, SPARED))
    text = out.getvalue()
    assert "┃" in text
    assert all(part in text for part in ("broker-a-2", "192.168.100.100:10911", "leader, term 17", "in sync"))


def test_table_title_reports_an_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    out = StringIO()
    Output(as_json=False, out=out).table("consumer groups", ("group",), [])
    assert "consumer groups: none" in out.getvalue()


def test_values_are_formatted_by_their_unit() -> None:
    assert [span_of(seconds) for seconds in (0, 59, 60, 3_605, 90_000, 86_400 * 400)] == [
        "0 s", "59 s", "1 min", "1 h", "1 d 1 h", "400 d",
    ]  # fmt: skip
    assert shown("store_ms", 1_795_300_842_361).endswith(".361")
    assert shown("wait_ms", 1_500) == "1,500"
    assert (shown("x", None), shown("x", True), shown("x", ["a", "b"])) == ("", "yes", "a, b")


def test_time_beyond_the_calendar_is_shown_as_a_number() -> None:
    assert shown("stored_ms", 1_700_000_000_000).startswith("2023-11-1")
    assert shown("stored_ms", (1 << 63) - 1) == "9,223,372,036,854,775,807"

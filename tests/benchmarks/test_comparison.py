"""The start of comparisons with other brokers, and the names of their reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import comparison
from benchmarks.comparison import run_comparison
from benchmarks.goals import Case
from benchmarks.load import LoadFailed
from benchmarks.versus_report import Report
from tests.compat.build import JavaNotFound


def raises(error: BaseException) -> Callable[[], None]:
    def compare() -> None:
        raise error

    return compare


def test_exit_code_shows_how_a_comparison_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comparison, "interrupt_once", lambda: None)  # this process keeps its handlers
    assert run_comparison(lambda: None) == 0
    assert run_comparison(raises(JavaNotFound("install a JDK"))) == 2
    assert run_comparison(raises(LoadFailed("the client failed")), LoadFailed) == 2
    assert run_comparison(raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.splitlines() == [
        "install a JDK", "the client failed", "interrupted; all processes were stopped",
    ]  # fmt: skip
    with pytest.raises(LoadFailed):
        run_comparison(raises(LoadFailed("of another comparison")))


def test_report_has_the_name_of_its_benchmark() -> None:
    report = Report(Case("python-16", "async"), "5.3.3", {}, {}, {}, "versus-proxy")
    assert report.as_json()["name"] == "versus-proxy python-16"

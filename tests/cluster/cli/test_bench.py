"""`raymq bench` with a failing benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client.errors import DeadlineExceeded
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run


def test_bench_that_cannot_use_tls_is_refused_with_it() -> None:
    ended = CliRunner().invoke(
        build(["bench"]), ["bench", "spark-read", "--tls", "certs"], env={"COLUMNS": "200"}
    )
    assert ended.exit_code == 2
    assert "only send-table, send-one" in ended.stderr


@pytest.mark.parametrize("error", [BenchFailed("no room"), DeadlineExceeded("no answer in time")])
def test_bench_prints_results_measured_before_a_failure(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def runs(*_: object) -> Iterator[tuple[str, list[BenchResult]]]:
        yield "push", [BenchResult("push", [Run(1.0, 123_456)])]
        raise error

    monkeypatch.setattr("cluster.lab.bench.registry.run_named", runs)
    monkeypatch.setattr(
        "store.common.logs.log_to_handler", lambda *_: None
    )  # this process is not the command's own
    ended = CliRunner().invoke(build(["bench"]), ["bench", "all"], env={"COLUMNS": "200"})
    assert ended.exit_code == 1
    [found] = map(json.loads, ended.stdout.splitlines())
    assert found["name"] == "push"
    assert 123_456 in found.values()
    assert str(error) in ended.stderr
    assert "Traceback" not in ended.output

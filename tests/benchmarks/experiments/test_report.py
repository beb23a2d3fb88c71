"""The result directory of a simulated experiment, and the command that writes it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from benchmarks.experiments.__main__ import main
from benchmarks.experiments.experiment import load_experiment
from benchmarks.experiments.history.judgement import Judgement
from benchmarks.experiments.report import write_report
from benchmarks.experiments.run import Injected, Trial
from benchmarks.experiments.simulation import simulate, simulate_fixed
from benchmarks.experiments.summary import summarize

STEP = "configs/experiments/step.yaml"
PNG = b"\x89PNG\r\n"


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, [*arguments])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "step"
    result = run(STEP, "--simulate", "--output", str(path))
    assert result.exit_code == 0, result.output
    return path


def test_the_result_directory_has_all_files(directory: Path) -> None:
    names = {file.name for file in directory.iterdir()}
    assert names == {
        "report.html", "summary.json", "series.parquet", "baseline.parquet", "decisions.parquet", "rates.png",
        "backlog.png", "brokers.png", "nodes.png",
    }  # fmt: skip
    assert all(file.read_bytes().startswith(PNG) for file in directory.glob("*.png"))


def test_the_report_needs_no_other_file(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "Each broker is limited to 100 messages/s" in page
    assert "(simulated)" in page
    assert "100 messages/s need 2 brokers of 90 messages/s" in page


def test_the_series_has_one_row_for_each_sample(directory: Path) -> None:
    table = pq.read_table(directory / "series.parquet")
    assert table.num_rows == 121
    assert {"time_s", "offered_per_s", "delivered_per_s", "target", "nodes"} <= set(table.column_names)
    assert pq.read_table(directory / "baseline.parquet")["nodes"].to_pylist() == [4] * 121


def test_the_decisions_carry_their_figures(directory: Path) -> None:
    rows = pq.read_table(directory / "decisions.parquet").to_pylist()
    assert (rows[0]["before"], rows[0]["target"]) == (1, 3)
    assert json.loads(rows[0]["figures"])["in_per_s"] == 100


def test_the_summary_has_the_measures_and_their_limits(directory: Path) -> None:
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["kind"] == "simulated"
    assert summary["caps"] == {"broker_per_s": 100, "consumer_per_s": 135}
    assert summary["elastic"]["offered"] == 19_800
    assert summary["elastic"]["lost"] is None
    assert {check["measure"]: check["holds"] for check in summary["checks"]} == {
        "lost": None, "out_of_order": None, "failed_sends": None, "relief_max_s": True,
        "delivered_ratio": True,
    }  # fmt: skip


def test_a_measured_run_is_judged_by_its_history(tmp_path: Path) -> None:
    experiment = load_experiment(STEP)
    simulated = simulate(experiment)
    judged = Judgement(sent=60_000, failed=0, lost=2, duplicated=1, out_of_order=0)
    measured = Trial(
        "measured", simulated.series, simulated.changes, judged, (12.0, 40.0), ("a node was killed",)
    )

    summary = write_report(tmp_path, experiment, measured, simulate_fixed(experiment), with_plots=False)

    assert (summary.elastic.latency_p50_ms, summary.elastic.latency_p99_ms) == (12.0, 40.0)
    assert (summary.elastic.lost, summary.elastic.duplicated) == (2, 1)
    assert not summary.holds
    assert "a node was killed" in (tmp_path / "report.html").read_text()
    assert not list(tmp_path.glob("*.png"))


def test_an_experiment_without_decisions_has_a_report(tmp_path: Path) -> None:
    experiment = load_experiment(STEP, ["profile={kind: step, steps: [{at_s: 0, rate_per_s: 0}]}"])
    summary = write_report(tmp_path, experiment, simulate(experiment), simulate_fixed(experiment))
    assert (summary.elastic.offered, summary.elastic.latency_p50_ms) == (0, None)
    assert pq.read_table(tmp_path / "decisions.parquet").num_rows == 0


def test_the_command_prints_all_measures_and_the_deviation(directory: Path) -> None:
    result = run(STEP, "--simulate", "--compare", str(directory / "summary.json"))
    assert result.exit_code == 0, result.output
    for measure in ("relief_max_s", "node_seconds_ratio", "delivered_ratio", "lost", "latency_p99_ms"):
        assert measure in result.output
    assert "Deviation from the simulated run" in result.output
    assert "+0.0%" in result.output


def test_a_dry_run_prints_the_decisions_and_starts_nothing(tmp_path: Path) -> None:
    result = run(STEP, "--dry-run", "--output", str(tmp_path / "result"))
    assert result.exit_code == 0, result.output
    assert "step: 1 to 4 brokers on nodes with broker_slot, load for 120 s" in result.output
    assert "1 → 3 brokers (throughput): 100 messages/s need 2 brokers of 90 messages/s" in result.output
    assert not (tmp_path / "result").exists()


def test_a_fault_must_be_injected_and_the_target_reached_after_it(tmp_path: Path) -> None:
    experiment = load_experiment(STEP, ["faults=[{kill: node, during: scale_out}]"])
    series = simulate(experiment).series
    starts = next(point.time_s for point in series if point.brokers_starting)
    fault = Injected(starts, "node 127.0.1.2 was killed while broker-2 started")
    runs = {
        "not injected": Trial("measured", series),
        "not recovered": Trial(
            "measured", [point for point in series if point.time_s <= starts], faults=(fault,)
        ),
        "recovered": Trial("measured", series, faults=(fault,)),
    }
    summaries = {name: summarize(experiment, run, simulate_fixed(experiment)) for name, run in runs.items()}
    held = {name: summary.checks[-1].holds for name, summary in summaries.items()}
    assert held == {"not injected": False, "not recovered": False, "recovered": True}
    assert "1 of the faults (node during scale_out) were not possible" in summaries["not injected"].notes[-1]
    assert "broker-2 started; the target was not reached after it" in summaries["not recovered"].notes[-1]
    assert re.search(r"the target was reached after \d+ s", summaries["recovered"].notes[-1])


def test_the_command_fails_if_a_limit_is_exceeded() -> None:
    result = run(STEP, "--simulate", "--set", "limits.relief_s=1")
    assert result.exit_code == 1
    assert "no" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([STEP, "--simulate", "--set", "rules.min=9"], "min 9 is greater than max 4"),
        ([STEP, "--set", "rules.max=9"], "9"),
        ([STEP, "--simulate", "--compare", "README.md"], "not the summary.json of an experiment"),
        (["none.yaml", "--simulate"], "no such file"),
        ([STEP, "--set", "faults=[{kill: disk, during: scale_in}]"], "faults[0].kill"),
        (
            [STEP, "--address", "127.0.0.1:1", "--set", "faults=[{kill: node, during: scale_in}]"],
            "the nodes of a running Ray are not killed",
        ),
    ],
)
def test_the_command_refuses_invalid_input(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_missing_matplotlib_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(STEP, "--simulate", "--output", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "run `uv sync --extra report`, or use --no-plots" in result.output
    assert not (tmp_path / "out").exists()
    assert run(STEP, "--simulate", "--no-plots", "--output", str(tmp_path / "out")).exit_code == 0

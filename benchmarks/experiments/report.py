"""Result directory of an experiment.

summary.json        measures, limits and whether they hold
series.parquet      one row for each sample of the elastic run
baseline.parquet    the same for the fixed cluster
decisions.parquet   the decisions that changed the target, with their figures as JSON
*.png               plots (with the extra `report`)
report.html         all of this as one page without other files
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.plots import draw, library, plots_of
from benchmarks.experiments.run import Change, Trial
from benchmarks.experiments.series import Point
from benchmarks.experiments.summary import Check, Measures, Summary, summarize

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}"
    "td.n{text-align:right}img{max-width:100%}.no{color:#b00;font-weight:bold}.yes{color:#070}"
)


def write_report(
    directory: Path, experiment: Experiment, elastic: Trial, baseline: Trial, *, with_plots: bool = True
) -> Summary:
    """Write all files of the result directory, which is created, and return the summary.

    Raises PlotsUnavailable, before anything is written, if plots are wanted and matplotlib is not installed.
    """
    if with_plots:
        library()
    directory.mkdir(parents=True, exist_ok=True)
    summary = summarize(experiment, elastic, baseline)
    text = json.dumps(summary.as_json(), indent=2, ensure_ascii=False)
    (directory / "summary.json").write_text(text + "\n")
    _write_series(directory / "series.parquet", elastic.series)
    _write_series(directory / "baseline.parquet", baseline.series)
    _write_changes(directory / "decisions.parquet", elastic.changes)
    images = _draw_all(directory, elastic, baseline) if with_plots else []
    (directory / "report.html").write_text(report_page(experiment, summary, elastic.changes, images))
    return summary


def _write_series(file: Path, series: Sequence[Point]) -> None:
    columns = {name: [getattr(point, name) for point in series] for name in Point._fields}
    pq.write_table(pa.table(columns), file)


def _write_changes(file: Path, changes: Sequence[Change]) -> None:
    rows = [
        {
            "time_s": change.time_s,
            "before": change.before,
            "target": change.decision.target,
            "rule": change.decision.rule,
            "reason": change.decision.reason,
            "figures": json.dumps(dict(change.decision.figures)),
        }
        for change in changes
    ]
    names = [("time_s", pa.float64()), ("before", pa.int64()), ("target", pa.int64())]
    schema = pa.schema([*names, *((name, pa.string()) for name in ("rule", "reason", "figures"))])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def _draw_all(directory: Path, elastic: Trial, baseline: Trial) -> list[tuple[str, bytes]]:
    times_s = [point.time_s for point in elastic.series]
    images = []
    for plot in plots_of(elastic, baseline):
        file = directory / plot.file
        draw(plot, times_s, elastic.changes, elastic.kind, file)
        images.append((plot.title, file.read_bytes()))
    return images


# ---- report.html -----------------------------------------------------------------------------------------


def report_page(
    experiment: Experiment, summary: Summary, changes: Sequence[Change], images: Sequence[tuple[str, bytes]]
) -> str:
    """Return report.html. `images` are (title, PNG) pairs, which become part of the page."""
    title = f"Experiment {html.escape(experiment.name)} ({summary.kind})"
    caps = experiment.caps
    conditions = (
        f"Duration of the load: {summary.run_s:,.0f} s. Each broker is limited to {caps.broker_per_s:,g} "
        f"messages/s, each consumer to {caps.consumer_per_s:,g} messages/s. "
        f"The fixed cluster of {experiment.rules.max} brokers was {summary.baseline_kind}."
    )
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>",
        f"<h1>{title}</h1>",
        f"<p>{conditions}</p>",
        *(f"<p>{html.escape(note)}</p>" for note in summary.notes),
        "<h2>What must hold</h2>",
        _table(("measure", "value", "limit", "holds"), map(_check_row, summary.checks)),
        "<h2>Measures</h2>",
        _table(("measure", "elastic", "fixed"), measure_rows(summary.elastic, summary.baseline)),
        *(
            f'<h2>{html.escape(name)}</h2><img alt="{html.escape(name)}" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for name, png in images
        ),
        "<h2>Decisions</h2>",
        _table(
            ("seconds", "brokers", "rule", "reason"),
            (
                (f"{each.time_s:,.0f}", f"{each.before} → {each.decision.target}", each.decision.rule,
                 each.decision.reason)
                for each in changes
            ),
        ),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _check_row(check: Check) -> tuple[str, str, str, str]:
    return check.measure, number_text(check.value), check.limit, holds_text(check)


def holds_text(check: Check) -> str:
    """Return `yes`, `no`, or `not simulated` for a check."""
    return {True: "yes", False: "no", None: "not simulated"}[check.holds]


def measure_rows(elastic: Measures, baseline: Measures) -> list[tuple[str, str, str]]:
    """Return (name, value of the elastic run, value of the baseline) of each measure, as text."""
    return [
        (name, number_text(value), number_text(getattr(baseline, name)))
        for name, value in vars(elastic).items()
    ]


def number_text(value: float | None) -> str:
    """Return a figure as text with at most three decimals, or `–` if it is unknown."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{html.escape(head)}</th>" for head in heads) + "</tr>"]
    for row in rows:
        cells = "".join(f"<td{_class(cell)}>{html.escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _class(cell: str) -> str:
    if cell in ("yes", "no"):
        return f" class={cell}"
    return " class=n" if cell[:1].isdigit() and cell.replace(",", "").replace(".", "").isdigit() else ""

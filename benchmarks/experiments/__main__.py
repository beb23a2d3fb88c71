"""`python -m cluster.autoscale FILE`: runs an autoscaling experiment, or simulates it with `--simulate`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.experiments.experiment import Experiment, ExperimentError, load_experiment
from benchmarks.experiments.plots import PlotsUnavailable, library
from benchmarks.experiments.report import holds_text, measure_rows, number_text, write_report
from benchmarks.experiments.run import Trial
from benchmarks.experiments.simulation import simulate, simulate_fixed
from benchmarks.experiments.summary import Summary, deviations, summarize
from cluster.interrupts import interrupt_once

EXIT_LIMIT_EXCEEDED = 1
EXIT_INVALID = 2


def main(
    file: Annotated[Path, typer.Argument(help="Experiment, for example configs/experiments/step.yaml.")],
    is_simulated: Annotated[
        bool, typer.Option("--simulate", help="Use a model of brokers and nodes.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write report.html, plots, series and summary.json to this directory.")
    ] = None,
    has_plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw plots.")] = True,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the file.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="summary.json of another run of the experiment: print the deviation from it."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Run on this Ray; its autoscaler adds and removes the nodes."),
    ] = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the decisions that a simulation makes; start nothing.")
    ] = False,
) -> None:
    """Run an autoscaling experiment and print its measures.

    It starts Ray on this machine, unless `--address` names a running one or this is a submitted job. The exit
    code is 1 if a measure exceeds its limit, and 2 if the experiment is invalid.
    """
    console = Console(highlight=False)
    try:
        experiment = load_experiment(file, overrides or ())
        other = None if compare is None else _read_summary(compare)
        if is_dry_run:
            _print_plan(console, experiment)
            return
        run = _simulate if is_simulated else partial(_measure, address)
        summary = run(console, experiment, output, has_plots=has_plots)
    except (ExperimentError, PlotsUnavailable) as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_INVALID) from None
    _print_summary(console, experiment, summary)
    if other is not None:
        console.print(_deviation_table(summary, other))
    if output is not None:
        console.print(f"report: {output / 'report.html'}", soft_wrap=True)
    if not summary.holds:
        raise typer.Exit(EXIT_LIMIT_EXCEEDED)


def _simulate(console: Console, experiment: Experiment, output: Path | None, *, has_plots: bool) -> Summary:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(experiment.name, total=experiment.run_s)
        elastic = simulate(experiment, lambda time_s: progress.update(task, completed=time_s))
        baseline: Trial = simulate_fixed(experiment)
    if output is None:
        return summarize(experiment, elastic, baseline)
    return write_report(output, experiment, elastic, baseline, with_plots=has_plots)


def _print_plan(console: Console, experiment: Experiment) -> None:
    """Print what a run would do. Its decisions are those of a simulation."""
    rules = experiment.rules
    console.print(
        f"{experiment.name}: {rules.min} to {rules.max} brokers on nodes with {experiment.resource}, load "
        f"for {experiment.run_s:,.0f} s. Nothing was started; a simulation decides:",
        soft_wrap=True,
    )
    for change in simulate(experiment).changes:
        decision = change.decision
        text = f"{change.before} → {decision.target} brokers ({decision.rule}): {decision.reason}"
        console.print(f"{change.time_s:8,.0f} s  {text}", soft_wrap=True)


def _measure(
    address: str | None, console: Console, experiment: Experiment, output: Path | None, *, has_plots: bool
) -> Summary:
    """Run the experiment with real brokers, then its baseline. Ctrl-C stops all processes."""
    # Imported here: a simulation needs no Ray.
    from benchmarks.experiments.measured import run_measured
    from cluster.launch import exiting_on_failures

    if output is not None and has_plots:
        library()
    errors = Console(stderr=True, highlight=False)
    with exiting_on_failures(errors), Progress(console=console, transient=True) as progress:

        def run(*, is_elastic: bool) -> Trial:
            name = experiment.name if is_elastic else f"{experiment.name}, fixed"
            task = progress.add_task(name, total=experiment.run_s)
            return run_measured(
                experiment,
                lambda time_s: progress.update(task, completed=time_s),
                is_elastic=is_elastic,
                address=address,
            )

        try:
            elastic = run(is_elastic=True)
            baseline = simulate_fixed(experiment)
            if experiment.baseline == "measure":
                if output is not None:  # kept if the run of the baseline fails
                    write_report(output, experiment, elastic, baseline, with_plots=has_plots)
                baseline = run(is_elastic=False)
        except KeyboardInterrupt:
            text = "interrupted; all processes of the experiment were stopped"
            raise KeyboardInterrupt(text) from None
    if output is None:
        return summarize(experiment, elastic, baseline)
    return write_report(output, experiment, elastic, baseline, with_plots=has_plots)


def _read_summary(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        deviations(found, found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"--compare {file}: not the summary.json of an experiment: {error}") from None
    return found


def _print_summary(console: Console, experiment: Experiment, summary: Summary) -> None:
    table = Table(title=f"{summary.experiment} ({summary.kind}), {summary.run_s:,.0f} s")
    for head in ("measure", "elastic", f"fixed, {experiment.rules.max} brokers"):
        table.add_column(head, justify="left" if head == "measure" else "right")
    for row in measure_rows(summary.elastic, summary.baseline):
        table.add_row(*row)
    console.print(table)
    limits = Table(title="What must hold")
    for head in ("measure", "value", "limit", "holds"):
        limits.add_column(head)
    for check in summary.checks:
        limits.add_row(check.measure, number_text(check.value), check.limit, holds_text(check))
    console.print(limits)


def _deviation_table(summary: Summary, other: dict[str, Any]) -> Table:
    table = Table(title=f"Deviation from the {other['kind']} run")
    for head in ("measure", summary.kind, other["kind"], "deviation"):
        table.add_column(head)
    for name, ours, theirs in deviations(summary.as_json(), other):
        text = f"{ours / theirs - 1:+.1%}" if theirs else number_text(ours - theirs)
        table.add_row(name, number_text(ours), number_text(theirs), text)
    return table


if __name__ == "__main__":
    interrupt_once()  # SIGTERM, as `ray job stop` sends, must not leave processes either
    typer.run(main)

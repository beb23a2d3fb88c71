"""Plots of an experiment, drawn with matplotlib (the extra `report`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks.experiments.run import Change, Trial
from benchmarks.experiments.series import Point

WIDTH_IN, HEIGHT_IN = 9.0, 2.8
REMEDY = "plots need matplotlib, which is not installed: run `uv sync --extra report`, or use --no-plots"


class PlotsUnavailable(Exception):
    """The library that draws the plots is not installed."""


Line = tuple[str, list[float], bool]
"""A line of a plot: label, values, and whether it is a step function."""


class Plot(NamedTuple):
    """One plot: file name, title, label of the y axis, and lines."""

    file: str
    title: str
    y_label: str
    lines: tuple[Line, ...]


def library() -> ModuleType:
    """Return `matplotlib.figure`. Raises PlotsUnavailable with the remedy if it is not installed."""
    try:
        import matplotlib.figure
    except ImportError:
        raise PlotsUnavailable(REMEDY) from None
    figure: ModuleType = matplotlib.figure
    return figure


def plots_of(run: Trial, baseline: Trial) -> list[Plot]:
    """Return the plots of a run: rates, backlog, brokers and nodes."""

    def line(label: str, value: Callable[[Point], float], *, is_step: bool = True) -> Line:
        return label, [float(value(point)) for point in run.series], is_step

    fixed = [float(point.nodes) for point in baseline.series]
    fixed_nodes = [fixed[min(index, len(fixed) - 1)] for index in range(len(run.series))]
    rates = (
        line("offered", lambda point: point.offered_per_s),
        line("delivered", lambda point: point.delivered_per_s),
    )
    backlog = (
        line("waiting in producers", lambda point: point.waiting_messages, is_step=False),
        line("stored, not consumed", lambda point: point.lag_messages, is_step=False),
    )
    brokers = (
        line("target", lambda point: point.target),
        line("running", lambda point: point.brokers_running),
        line("draining", lambda point: point.brokers_draining),
    )
    nodes = (
        line("elastic", lambda point: point.nodes),
        line("booting", lambda point: point.nodes_booting),
        ("fixed cluster", fixed_nodes, True),
    )
    return [
        Plot("rates.png", "Offered and delivered rate", "messages/s", rates),
        Plot("backlog.png", "Messages offered and not delivered", "messages", backlog),
        Plot("brokers.png", "Brokers, and the decisions (dotted)", "brokers", brokers),
        Plot("nodes.png", "Nodes", "nodes", nodes),
    ]


def draw(plot: Plot, times_s: Sequence[float], changes: Sequence[Change], mark: str, file: Path) -> None:
    """Draw one plot as PNG.

    Args:
        plot: The plot.
        times_s: Time of each value of its lines.
        changes: Decisions, drawn as dotted vertical lines.
        mark: Text in the title that says whether the run was simulated.
        file: The file to write.

    Raises:
        PlotsUnavailable: matplotlib is not installed.
    """
    figure: Any = library().Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    for label, values, is_step in plot.lines:
        axes.plot(
            times_s, values, label=label, linewidth=1.2, drawstyle="steps-post" if is_step else "default"
        )
    for change in changes:
        is_raise = change.decision.target > change.before
        axes.axvline(change.time_s, color="tab:red" if is_raise else "tab:gray", linestyle=":", linewidth=0.8)
    axes.set(title=f"{plot.title} – {mark}", xlabel="seconds of the run", ylabel=plot.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(file, dpi=100)

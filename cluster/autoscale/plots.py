"""Plots of an experiment, drawn with matplotlib (the extra `report`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from cluster.autoscale.run import Change, Run

WIDTH_IN, HEIGHT_IN = 9.0, 2.8
REMEDY = "plots need matplotlib, which is not installed: run `uv sync --extra report`, or use --no-plots"


class PlotsUnavailable(Exception):
    """The library that draws the plots is not installed."""


class Plot(NamedTuple):
    """One plot: file name, title, label of the y axis, and lines: (label, values, is a step function)."""

    file: str
    title: str
    y_label: str
    lines: tuple[tuple[str, list[float], bool], ...]


def library() -> ModuleType:
    """Return `matplotlib.figure`. Raises PlotsUnavailable with the remedy if it is not installed."""
    try:
        import matplotlib.figure
    except ImportError:
        raise PlotsUnavailable(REMEDY) from None
    figure: ModuleType = matplotlib.figure
    return figure


def plots_of(run: Run, baseline: Run) -> list[Plot]:
    """Return the plots of a run: rates, backlog, brokers and nodes."""
    series = run.series
    fixed = [float(point.nodes) for point in baseline.series]
    fixed_nodes = [fixed[min(index, len(fixed) - 1)] for index in range(len(series))]
    return [
        Plot(
            "rates.png",
            "Offered and delivered rate",
            "messages/s",
            (
                ("offered", [p.offered_per_s for p in series], True),
                ("delivered", [p.delivered_per_s for p in series], True),
            ),
        ),
        Plot(
            "backlog.png",
            "Messages offered and not delivered",
            "messages",
            (
                ("waiting in producers", [p.waiting_messages for p in series], False),
                ("stored, not consumed", [p.lag_messages for p in series], False),
            ),
        ),
        Plot(
            "brokers.png",
            "Brokers, and the decisions (dotted)",
            "brokers",
            (
                ("target", [float(p.target) for p in series], True),
                ("running", [float(p.brokers_running) for p in series], True),
                ("draining", [float(p.brokers_draining) for p in series], True),
            ),
        ),
        Plot(
            "nodes.png",
            "Nodes",
            "nodes",
            (
                ("elastic", [float(p.nodes) for p in series], True),
                ("booting", [float(p.nodes_booting) for p in series], True),
                ("fixed cluster", fixed_nodes, True),
            ),
        ),
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

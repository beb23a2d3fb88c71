"""Progress bars of the demo, and the redirection of all other output to a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from cluster.control.launch_report import Reporter


class Stage(Progress):
    """Shows a progress bar for each part of the demo."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    def finish(self, part: TaskID, text: str | None = None) -> None:
        """Show the progress bar of `part` as complete, with `text` as its new description if given."""
        task = self.tasks[part]
        total = task.total or max(task.completed, 1)
        self.update(part, completed=total, total=total, description=text)


class StageReport(Reporter):
    """Shows the progress reports of the cluster driver in the description of one progress bar."""

    def __init__(self, stage: Stage, part: TaskID) -> None:
        self._stage = stage
        self._part = part
        self._text = stage.tasks[part].description

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show `text` while a step is running; yield a function that adds details to it."""
        self.line(text)
        yield lambda progress: self.line(f"{text}: {progress}")

    def line(self, text: str, style: str = "") -> None:
        """Show `text`, the last completed step. The style is ignored."""
        self._stage.update(self._part, description=f"{self._text}: {text}")


@contextmanager
def console_alone(log_file: Path) -> Iterator[Console]:
    """Yield a console for standard output, and redirect all other output to `log_file` meanwhile.

    Ray, Spark's JVM and log handlers write to the file descriptors 1 and 2, which child processes inherit.
    Both descriptors are redirected to `log_file`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with log_file.open("ab") as log, os.fdopen(os.dup(1), "w") as out, os.fdopen(os.dup(2), "w") as err:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield Console(file=out)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)

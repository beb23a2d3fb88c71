"""Progress bars of the demo, and the redirection of all other output to a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from cluster.driver.launch_report import Report


class Stage:
    """Shows a progress bar for each part of the demo."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress bars inside the context."""
        with self._progress:
            yield

    def begin(self, text: str, total: int | None = None) -> TaskID:
        """Add a progress bar and return its id. If `total` is None, the bar shows activity but no share."""
        return self._progress.add_task(escape(text), total=total)

    def show(
        self, part: TaskID, done: int | None = None, *, total: int | None = None, text: str | None = None
    ) -> None:
        """Update the progress bar of `part`. Values that are None remain unchanged."""
        description = None if text is None else escape(text)
        self._progress.update(part, completed=done, total=total, description=description)

    def finish(self, part: TaskID, text: str | None = None) -> None:
        """Show the progress bar of `part` as complete, with `text` as its new description if given."""
        task = self._progress.tasks[part]
        total = task.total or max(task.completed, 1)
        self.show(part, int(total), total=int(total), text=text)


class StageReport(Report):
    """Shows the progress reports of the cluster driver in the description of one progress bar."""

    def __init__(self, stage: Stage, part: TaskID, text: str) -> None:
        self._stage = stage
        self._part = part
        self._text = text

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show `text` while a step is running; yield a function that adds details to it."""
        self._stage.show(self._part, text=f"{self._text}: {text}")
        yield lambda progress: self._stage.show(self._part, text=f"{self._text}: {text}: {progress}")

    def line(self, text: str, style: str = "") -> None:
        """Show `text`, the last completed step. The style is ignored."""
        self._stage.show(self._part, text=f"{self._text}: {text}")


@contextmanager
def console_alone(log_file: Path) -> Iterator[Console]:
    """Yield a console for standard output, and redirect all other output to `log_file` meanwhile.

    Ray, Spark's JVM and log handlers write to the file descriptors 1 and 2, which child processes inherit.
    Both descriptors are redirected to `log_file`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    with os.fdopen(out, "w", closefd=False) as stream:
        try:
            yield Console(file=stream)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out, 1)
            os.dup2(err, 2)
    os.close(out)
    os.close(err)

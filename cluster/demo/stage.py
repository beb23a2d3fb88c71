"""Progress bars of the demo; all other output goes to a log file."""

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

from cluster.launch_report import Report


class Stage:
    """Progress bars, one per part of the demo."""

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
        """Add a progress bar; without a total it is indeterminate."""
        return self._progress.add_task(escape(text), total=total)

    def show(
        self, part: TaskID, done: int | None = None, *, total: int | None = None, text: str | None = None
    ) -> None:
        """Update the progress bar of one part of the demo."""
        description = None if text is None else escape(text)
        self._progress.update(part, completed=done, total=total, description=description)

    def finish(self, part: TaskID, text: str | None = None) -> None:
        """Complete the progress bar of a part."""
        task = self._progress.tasks[part]
        total = task.total or max(task.completed, 1)
        self.show(part, int(total), total=int(total), text=text)


class StageReport(Report):
    """Shows the progress of the cluster driver as the text of one progress bar."""

    def __init__(self, stage: Stage, part: TaskID, text: str) -> None:
        self._stage = stage
        self._part = part
        self._text = text

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show work in progress."""
        self._stage.show(self._part, text=f"{self._text}: {text}")
        yield lambda progress: self._stage.show(self._part, text=f"{self._text}: {text}: {progress}")

    def line(self, text: str, style: str = "") -> None:
        """Show the last completed step."""
        self._stage.show(self._part, text=f"{self._text}: {text}")


@contextmanager
def console_alone(log_file: Path) -> Iterator[Console]:
    """Yield a console on standard output; redirect all other output of this process and its children.

    Ray, Spark's JVM and log handlers write to file descriptors 1 and 2; both are redirected to `log_file`.
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

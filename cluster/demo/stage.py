"""What the demo shows while it runs: progress bars on the console; everything else goes to a log file."""

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
    """Progress bars, one a part of the demo."""

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
        """Show the bars meanwhile."""
        with self._progress:
            yield

    def begin(self, text: str, total: int | None = None) -> TaskID:
        """Begin a part; without a total its bar only moves."""
        return self._progress.add_task(escape(text), total=total)

    def show(
        self, part: TaskID, done: int | None = None, *, total: int | None = None, text: str | None = None
    ) -> None:
        """Say how far a part is."""
        description = None if text is None else escape(text)
        self._progress.update(part, completed=done, total=total, description=description)

    def finish(self, part: TaskID, text: str | None = None) -> None:
        """End a part."""
        task = self._progress.tasks[part]
        total = task.total or max(task.completed, 1)
        self.show(part, int(total), total=int(total), text=text)


class StageReport(Report):
    """Shows what the cluster's driver does, as the text of one part."""

    def __init__(self, stage: Stage, part: TaskID, text: str) -> None:
        self._stage = stage
        self._part = part
        self._text = text

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show what is under way."""
        self._stage.show(self._part, text=f"{self._text}: {text}")
        yield lambda progress: self._stage.show(self._part, text=f"{self._text}: {text}: {progress}")

    def line(self, text: str, style: str = "") -> None:
        """Show what has been done, until the next."""
        self._stage.show(self._part, text=f"{self._text}: {text}")


@contextmanager
def console_alone(log_file: Path) -> Iterator[Console]:
    """Give a console on standard output; what else this process and its children print goes to `log_file`.

    Ray, Spark's JVM and our own logs write to the descriptors, not to Python's streams.
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

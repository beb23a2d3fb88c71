"""Progress reports of `up`, `down`, `restart` and `drain`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from cluster.control.plan import Plan, Verb

STYLES = {
    Verb.CREATE: "green",
    Verb.ADOPT: "dim",
    Verb.ADJUST: "cyan",
    Verb.ROLL: "yellow",
    Verb.KEEP: "dim",
    Verb.REMOVE: "red",
}


class Reporter:
    """Receives progress and discards it; `ConsoleReport` prints it."""

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Report work in progress; yields a function that reports its progress."""
        yield lambda progress: None

    def line(self, text: str, style: str = "") -> None:
        """Report a completed step."""

    def plan(self, plan: Plan) -> None:
        """Report the plan before it is executed."""


class ConsoleReport(Reporter):
    """Prints progress on a console, with spinners on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with the text until the work is done."""
        if not self._console.is_terminal:
            yield lambda progress: None
            return
        with self._console.status(escape(text)) as status:
            yield lambda progress: status.update(escape(f"{text}: {progress}"))

    def line(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._console.print(text, style=style or None, highlight=False, markup=False, soft_wrap=True)

    def plan(self, plan: Plan) -> None:
        """Print each action with its reason."""
        width = max((len(action.name) for action in plan.actions), default=0)
        for action in plan.actions:
            self.line(f"{action.verb:<7} {action.name:<{width}}  {action.reason}", STYLES[action.verb])


class PlanReport(Reporter):
    """Collects the report of a dry run, for output as JSON."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._actions: list[dict[str, str]] = []

    def line(self, text: str, style: str = "") -> None:
        """Add a line."""
        self._lines.append(text)

    def plan(self, plan: Plan) -> None:
        """Add the actions of a plan."""
        self._actions += [
            {"verb": str(action.verb), "actor": action.name, "reason": action.reason}
            for action in plan.actions
        ]

    def as_json(self) -> dict[str, object]:
        """Return the planned actions and the lines."""
        return {"dry_run": True, "actions": self._actions, "lines": self._lines}

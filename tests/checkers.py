"""Assertion over recorded histories, with the events and checks of the experiments."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.experiments.history.checks import CHECKS, Problem, problems
from benchmarks.experiments.history.events import Event, Operation, Recorder, load

__all__ = ["CHECKS", "Event", "Operation", "Problem", "Recorder", "assert_consistent", "load", "problems"]


def assert_consistent(events: Iterable[Event], about: object = "", *, ignore: Iterable[str] = ()) -> None:
    """Fail with the first problems of a history; `about` names the tested case in the message."""
    found = problems(events, ignore=ignore)
    shown = "\n".join(f"{problem.check}: {problem.detail}" for problem in found[:10])
    assert not found, f"{about}: {len(found)} problem(s)\n{shown}"

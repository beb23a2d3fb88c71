"""Turn: the ordered steps at the end of each turn of a broker's loop.

    sockets are read, requests handled, messages appended
      │
      └─► flush ──► confirm ──► dispatch ──► admit ──► responses written, costly requests served (`Hub`)

A feature adds a step by the name of the step that it follows (`Capability.turn_steps`). A turn that has only
read requests has nothing to do in these steps and skips them, unless a feature has added one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from actors.transport.hub import Hub


class TurnStep(NamedTuple):
    """One step of a turn."""

    name: str
    act: Callable[[], object]
    follows: str = ""
    """The name of the step before it; empty for the steps of every broker, which are given in order."""


class Turn:
    """The steps of one broker."""

    def __init__(self, hub: Hub, is_due: Callable[[], bool], steps: Iterable[TurnStep]) -> None:
        """Create the object, and let the hub call `end`.

        Args:
            hub: runs the turns; in those that `request_tick` has begun, there is something to do.
            is_due: returns True if there is in the present turn, though nothing has requested it.
            steps: the steps of every broker, in order.
        """
        self._hub = hub
        self._is_due = is_due
        self._steps = [*steps]
        self._may_skip = True
        hub.end_with(self.end)

    @property
    def names(self) -> list[str]:
        """The names of the steps, in order."""
        return [step.name for step in self._steps]

    def add(self, step: TurnStep) -> None:
        """Add the step of a feature. Raises ValueError if there is no step that it `follows`."""
        names = self.names
        if step.follows not in names:
            raise ValueError(f"turn step {step.name!r} follows {step.follows!r}, which is not one of {names}")
        self._steps.insert(names.index(step.follows) + 1, step)
        self._may_skip = False

    def end(self) -> None:
        """Run all steps, if there is something to do in them."""
        if self._may_skip and not self._hub.was_requested and not self._is_due():
            return
        for step in self._steps:
            step.act()

    def stop(self) -> None:
        """Run no step any more."""
        self._steps = []

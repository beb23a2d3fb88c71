"""History: the last hour in steps of the samples, and the last day in minutes, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Span = Literal["hour", "day"]

HOUR_POINTS = 720
DAY_STEP_MS = 60_000
DAY_POINTS = 1_440

Point = tuple[int, *tuple[float | None, ...]]
"""A time in milliseconds since the epoch, and the value of each figure at that time; None if unknown."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over time: `values[i]` are those of figure i at `times_ms`; None where a value is unknown."""

    times_ms: Sequence[int]
    values: Sequence[Sequence[float | None]]


class History:
    """Points of some figures over time; old ones are dropped."""

    def __init__(self, figures: int, *, with_day: bool = True) -> None:
        self._figures = figures
        self._hour: deque[Point] = deque(maxlen=HOUR_POINTS)
        self._day: deque[Point] | None = deque(maxlen=DAY_POINTS) if with_day else None

    def add(self, at_ms: int, *values: float | None) -> None:
        """Add the values of all figures at one time."""
        point: Point = (at_ms, *values)
        self._hour.append(point)
        day = self._day
        if day is not None and (not day or at_ms - day[-1][0] >= DAY_STEP_MS):
            day.append(point)

    def curves(self, span: Span = "hour") -> Curves:
        """Return the points of the last hour or day."""
        points = list(self._day if span == "day" and self._day is not None else self._hour)
        return Curves(
            [point[0] for point in points],
            [[point[1 + figure] for point in points] for figure in range(self._figures)],
        )

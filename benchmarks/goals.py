"""What the comparison with RocketMQ is to show: floors and aims of ours ÷ theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One figure of one load. Where the aim lies below the floor, less is better."""

    load: str
    figure: str
    floor: float
    aim: float
    flush: str = "async"

    def verdict(self, ratio: float) -> str:
        """`aim`, `floor` or `missed`: how far the ratio reaches."""
        less_is_better = self.aim < self.floor
        for name, goal in (("aim", self.aim), ("floor", self.floor)):
            if ratio <= goal if less_is_better else ratio >= goal:
                return name
        return "missed"


GOALS: Sequence[Goal] = (
    Goal("java-producer", "messages_per_s", floor=1.2, aim=1.6),
    Goal("java-producer", "messages_per_s", floor=1.0, aim=1.5, flush="sync"),
    Goal("java-producer-1", "p50_ms", floor=0.9, aim=0.6),
    Goal("java-producer-1", "p99_ms", floor=1.0, aim=0.5),
    Goal("java-batch", "messages_per_s", floor=1.0, aim=1.5),
    Goal("java-push", "messages_per_s", floor=1.0, aim=1.2),
    Goal("java-1k", "messages_per_s", floor=1.0, aim=1.3),
    Goal("java-16k", "messages_per_s", floor=1.0, aim=1.3),
    Goal("java-end-to-end", "p50_ms", floor=1.0, aim=0.5),
    Goal("java-end-to-end", "p99_ms", floor=1.0, aim=0.5),
    Goal("java-producer", "broker_anonymous_mib", floor=0.5, aim=0.3),
)


@dataclass(frozen=True)
class Case:
    """A load under a flush mode."""

    load: str
    flush: str


CASES: Sequence[Case] = tuple(dict.fromkeys(Case(goal.load, goal.flush) for goal in GOALS))


@dataclass(frozen=True)
class Reached:
    """A goal, and what was measured of it."""

    goal: Goal
    ratio: float

    @property
    def verdict(self) -> str:
        """`aim`, `floor` or `missed`."""
        return self.goal.verdict(self.ratio)


def reached(ratios: Mapping[Case, Mapping[str, float]]) -> Sequence[Reached]:
    """What was measured of each goal, of those whose load was run on both sides."""
    found = ((goal, ratios.get(Case(goal.load, goal.flush), {}).get(goal.figure)) for goal in GOALS)
    return [Reached(goal, ratio) for goal, ratio in found if ratio is not None]

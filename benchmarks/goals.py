"""Goals of the comparison with RocketMQ: minimum and target values of the ratio RayMQ ÷ RocketMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """The goal for one figure of one load: the minimum (`floor`) and the target (`aim`) of its ratio.

    If the aim is less than the floor, smaller ratios are better.
    """

    load: str
    figure: str
    floor: float
    aim: float
    flush: str = "async"

    def verdict(self, ratio: float) -> str:
        """Return `aim` if the ratio reaches the aim, else `floor` if it reaches the floor, else `missed`."""
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
    Goal("java-ordered", "messages_per_s", floor=0.9, aim=1.0),
    Goal("java-transactions", "messages_per_s", floor=1.0, aim=1.2),
    Goal("java-1k", "messages_per_s", floor=1.0, aim=1.3),
    Goal("java-16k", "messages_per_s", floor=1.0, aim=1.3),
    Goal("java-end-to-end", "p50_ms", floor=1.0, aim=0.5),
    Goal("java-end-to-end", "p99_ms", floor=1.0, aim=0.5),
    Goal("java-producer", "broker_anonymous_mib", floor=0.5, aim=0.3),
)


@dataclass(frozen=True)
class Case:
    """A load and the flush mode of the brokers."""

    load: str
    flush: str


CASES: Sequence[Case] = tuple(dict.fromkeys(Case(goal.load, goal.flush) for goal in GOALS))


@dataclass(frozen=True)
class GoalResult:
    """A goal and the measured ratio."""

    goal: Goal
    ratio: float

    @property
    def verdict(self) -> str:
        """The verdict of the goal on the ratio: `aim`, `floor` or `missed`."""
        return self.goal.verdict(self.ratio)


def goal_results(ratios: Mapping[Case, Mapping[str, float]]) -> Sequence[GoalResult]:
    """Return the result of each goal whose load was measured on both sides."""
    found = ((goal, ratios.get(Case(goal.load, goal.flush), {}).get(goal.figure)) for goal in GOALS)
    return [GoalResult(goal, ratio) for goal, ratio in found if ratio is not None]

"""Goals of the comparison with RocketMQ: the minimum and the target of each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Goal:
    """The goal for one figure of one load: its minimum (`floor`) and its target (`aim`).

    The figure is the ratio RayMQ ÷ RocketMQ, or RayMQ's own value if `is_ratio` is False. If the aim is less
    than the floor, smaller values are better. Without an aim the client is the limit beyond the floor.
    """

    load: str
    figure: str
    floor: float
    aim: float | None
    flush: str = "async"
    is_ratio: bool = True
    pair: str = ""
    """Value of `replication` if each side is a master with a slave; empty for single brokers."""

    def verdict(self, value: float) -> str:
        """Return `aim` if the value reaches the aim, else `floor` if it reaches the floor, else `missed`."""
        less_is_better = self.aim is not None and self.aim < self.floor
        for name, goal in (("aim", self.aim), ("floor", self.floor)):
            if goal is not None and (value <= goal if less_is_better else value >= goal):
                return name
        return "missed"


GOALS: Sequence[Goal] = (
    Goal("java-producer", "messages_per_s", floor=2.2, aim=3.0),
    Goal("java-1k", "messages_per_s", floor=1.8, aim=2.5),
    Goal("java-producer", "messages_per_s", floor=1.3, aim=1.5, flush="sync"),
    Goal("java-batch", "messages_per_s", floor=1.5, aim=2.0),
    Goal("java-push", "messages_per_s", floor=1.2, aim=None),
    Goal("java-producer-1", "p50_ms", floor=0.6, aim=0.4),
    Goal("java-producer-1", "p99_ms", floor=0.7, aim=0.5),
    Goal("java-end-to-end", "send_p50_ms", floor=1.0, aim=0.6),
    Goal("java-end-to-end", "p50_ms", floor=0.6, aim=0.25),
    Goal("java-producer", "broker_cpu_us_per_message", floor=12.0, aim=6.0, is_ratio=False),
    # 1.5 and 1.3 times the middle of the rates before the compiled turn: 13-25 k/s and 1.9-2.6 M/s.
    Goal("send-async", "messages_per_s", floor=28_500, aim=60_000, is_ratio=False),
    Goal("pull-arrow", "messages_per_s", floor=2_900_000, aim=5_000_000, is_ratio=False),
    Goal("java-end-to-end", "p99_ms", floor=1.0, aim=0.5),
    Goal("java-ordered", "messages_per_s", floor=0.9, aim=1.0),
    Goal("java-transactions", "messages_per_s", floor=1.0, aim=1.2),
    Goal("java-16k", "messages_per_s", floor=1.0, aim=1.3),
    Goal("java-producer", "broker_anonymous_mib", floor=0.5, aim=0.3),
    Goal("java-producer", "messages_per_s", floor=1.2, aim=None, pair="async"),
    Goal("java-producer", "messages_per_s", floor=1.0, aim=None, pair="sync"),
    Goal("java-producer", "messages_per_s", floor=1.0, aim=None, pair="sync", flush="sync"),
)
PYTHON_LOADS = ("send-async", "pull-arrow")
"""Loads of the Python client: benchmarks of `cluster.lab.bench`, which only RayMQ can serve."""


@dataclass(frozen=True)
class Case:
    """A load, the flush mode of the brokers, and their replication if each side is a pair."""

    load: str
    flush: str
    pair: str = ""


CASES: Sequence[Case] = tuple(dict.fromkeys(Case(goal.load, goal.flush, goal.pair) for goal in GOALS))


@dataclass(frozen=True)
class GoalResult:
    """A goal and the measured value."""

    goal: Goal
    value: float

    @property
    def verdict(self) -> str:
        """The verdict of the goal on the value: `aim`, `floor` or `missed`."""
        return self.goal.verdict(self.value)


@dataclass(frozen=True)
class Measured:
    """The figures of one case: RayMQ's own, and the ratios RayMQ ÷ RocketMQ if both were measured."""

    ours: Mapping[str, float]
    ratios: Mapping[str, float] = field(default_factory=dict)


def goal_results(measured: Mapping[Case, Measured]) -> Sequence[GoalResult]:
    """Return the result of each goal whose figure was measured."""
    found = []
    for goal in GOALS:
        case = measured.get(Case(goal.load, goal.flush, goal.pair), Measured({}))
        value = (case.ratios if goal.is_ratio else case.ours).get(goal.figure)
        if value is not None:
            found.append(GoalResult(goal, value))
    return found

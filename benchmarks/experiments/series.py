"""Series of an experiment, and the measures that are computed from it. Pure functions.

The backlog of a time is the number of messages that were offered and not delivered: those that wait in the
producers for a broker, and those that are stored and not consumed. A message is delivered once the backlog
at the time of its offer is delivered, which gives its latency without looking at single messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

BACKLOG_SECONDS = 1.0
"""A load is in arrears while its backlog is larger than what it offers in this time, in seconds."""


class Point(NamedTuple):
    """The state of an experiment at one time.

    Rates are means since the previous point. `nodes` counts the nodes that are part of the cluster and run
    or may run a broker, and `nodes_booting` those that were requested and have not joined it yet.
    """

    time_s: float
    offered_per_s: float = 0.0
    accepted_per_s: float = 0.0
    delivered_per_s: float = 0.0
    waiting_messages: float = 0.0
    lag_messages: float = 0.0
    target: int = 0
    brokers_running: int = 0
    brokers_starting: int = 0
    brokers_draining: int = 0
    nodes: int = 0
    nodes_booting: int = 0

    @property
    def is_at_target(self) -> bool:
        """True if as many brokers run as wanted, and none starts or is drained."""
        return self.brokers_running == self.target and not self.brokers_starting + self.brokers_draining

    @property
    def backlog(self) -> float:
        """The number of messages that were offered and not delivered."""
        return self.waiting_messages + self.lag_messages


class Relief(NamedTuple):
    """One rise of the load that caused a backlog.

    Attributes:
        begin_s: Time at which the backlog began to grow.
        end_s: Time at which it was highest; it shrank from then on.
        boot_s: Part of this time in which a requested node was booting.
    """

    begin_s: float
    end_s: float
    boot_s: float

    @property
    def seconds(self) -> float:
        """The time until the backlog shrank, without the time of booting nodes."""
        return max(self.end_s - self.begin_s - self.boot_s, 0.0)


def reliefs(series: Sequence[Point]) -> list[Relief]:
    """Return the rises of the load that caused a backlog, in the order of time.

    A rise lasts from the last point without arrears (see BACKLOG_SECONDS) to the next one.
    """
    found: list[Relief] = []
    calm = 0
    highest = -1
    for index, point in enumerate(series):
        in_arrears = point.backlog > max(point.offered_per_s * BACKLOG_SECONDS, 1.0)
        if in_arrears and (highest < 0 or point.backlog > series[highest].backlog):
            highest = index
        if not in_arrears or index == len(series) - 1:
            if highest >= 0:
                found.append(_relief(series, calm, highest))
            calm, highest = index, -1
    return found


def _relief(series: Sequence[Point], begin: int, end: int) -> Relief:
    boot_s = sum(
        later.time_s - earlier.time_s
        for earlier, later in pairwise(series[begin : end + 1])
        if earlier.nodes_booting
    )
    return Relief(series[begin].time_s, series[end].time_s, boot_s)


def recovery_s(series: Sequence[Point], fault_s: float) -> float | None:
    """Return the time from a fault until the target was reached; None if it was not."""
    reached = (point.time_s for point in series if point.time_s > fault_s and point.is_at_target)
    return next((time_s - fault_s for time_s in reached), None)


def node_seconds(series: Sequence[Point]) -> float:
    """Return the sum of the times that nodes were part of the cluster, without their boot times."""
    return sum(earlier.nodes * (later.time_s - earlier.time_s) for earlier, later in pairwise(series))


def totals(series: Sequence[Point]) -> tuple[float, float]:
    """Return the numbers of messages (offered, delivered)."""
    offered = sum(
        later.offered_per_s * (later.time_s - earlier.time_s) for earlier, later in pairwise(series)
    )
    delivered = sum(
        later.delivered_per_s * (later.time_s - earlier.time_s) for earlier, later in pairwise(series)
    )
    return offered, delivered


def latency_percentiles(series: Sequence[Point], percentiles: Sequence[float]) -> list[float]:
    """Return percentiles of the time that delivered messages waited, in seconds; NaN without messages.

    Messages are assumed to be delivered in the order of their offers.
    """
    times = np.array([point.time_s for point in series])
    steps = np.diff(times)
    offered = np.concatenate(([0.0], np.cumsum([p.offered_per_s for p in series[1:]] * steps)))
    delivered = np.concatenate(([0.0], np.cumsum([p.delivered_per_s for p in series[1:]] * steps)))
    if not len(steps) or delivered[-1] <= 0:
        return [float("nan")] * len(percentiles)
    messages = np.linspace(0, min(offered[-1], delivered[-1]), 10_001)[1:]
    waits = np.maximum(_time_of(delivered, times, messages) - _time_of(offered, times, messages), 0)
    return [float(each) for each in np.percentile(waits, percentiles)]


def _time_of(counts: np.ndarray, times: np.ndarray, messages: np.ndarray) -> np.ndarray:
    """Return the times at which a cumulative count reached the given numbers of messages."""
    is_new = np.concatenate(([True], np.diff(counts) > 0))
    is_new[:-1] |= is_new[1:]  # keep the last point before each rise, so that idle times are skipped
    found: np.ndarray = np.interp(messages, counts[is_new], times[is_new])
    return found

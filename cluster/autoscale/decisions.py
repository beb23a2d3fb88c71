"""Decisions: how many brokers there should be. Pure functions of a time series; no clock, no Ray, no sockets.

    rule         changes the target
    limits       at once, if the target is outside of min … max
    throughput   up by `step` if the rates of the last two samples need more brokers, without cool-down. While
                 brokers are starting, only up to the number that the lower of these rates needs
    lag          up by `step`  ┐
    disk         up by `step`  ├ after the cool-down, and only while all brokers of the target are running
    cpu          up by `step`  ┘
    idle         down by at most `step`, after the cool-down, if no rule would raise the target again, and
                 only while all brokers of the target are running, or if one does not start for START_S

The load of the last `cool_down_s` seconds counts for `idle`, so a short pause removes no broker. Brokers that
receive more than `throughput_per_broker` may be saturated: their rate then does not show how much is offered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.autoscale.rules import Rules
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING, BrokerSample, FleetSample

LIMITS = "limits"
THROUGHPUT = "throughput"
LAG = "lag"
DISK = "disk"
CPU = "cpu"
IDLE = "idle"
STEADY = "steady"

START_S = 300.0
"""Seconds after a change of the target in which its brokers may still be starting."""


@dataclass(frozen=True)
class Decision:
    """The number of brokers that there should be, and why.

    Attributes:
        target: The number of brokers.
        reason: One sentence with the figures and thresholds that caused the decision.
        figures: The figures of the newest sample, by name with unit.
        rule: The rule that changed the target, or that kept it; `steady` if the load needs no change.
    """

    target: int
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)
    rule: str = STEADY


def next_decision(
    rules: Rules, history: Sequence[FleetSample], target: int, last_change_s: float | None = None
) -> Decision:
    """Return the number of brokers that there should be.

    Args:
        rules: The rules to apply.
        history: Samples in the order of their time; the last one is the present.
        target: The current target.
        last_change_s: Time of the last change of the target, on the clock of the samples; None before the
            first change.
    """
    if not rules.min <= target <= rules.max:
        limit = min(max(target, rules.min), rules.max)
        reason = f"target {target} is outside of min {rules.min} to max {rules.max}"
        return Decision(limit, reason, _figures(rules, history, last_change_s), LIMITS)
    if not history:
        return Decision(target, "no sample yet")
    figures = _figures(rules, history, last_change_s)
    now = history[-1]
    # Producers that waited for a new broker send what they held back: a high rate, but not for long.
    rate_per_s = min(now.in_per_s, history[max(len(history) - 2, 0)].in_per_s)
    needed = brokers_for(rules, rate_per_s)
    if needed > target:
        reason = (
            f"{rate_per_s:,.0f} messages/s need {needed} brokers of "
            f"{rules.throughput_per_broker:,.0f} messages/s"
        )
        # Saturated brokers do not show how much more is offered: add as many as one decision may.
        wanted = needed if now.running < target else max(needed, target + rules.step)
        return _raised(rules, target, wanted, THROUGHPUT, reason, figures)
    exceeded = next(_exceeded(rules, now), None)
    if exceeded is not None:
        rule, reason = exceeded
        wait = _wait(rules, now, target, last_change_s)
        if wait:
            return Decision(target, f"{reason}, but {wait}", figures, rule)
        return _raised(rules, target, target + rules.step, rule, reason, figures)
    return _lowered(rules, history, target, last_change_s, figures)


def brokers_for(rules: Rules, rate_per_s: float, spare: float = 0.0) -> int:
    """Return the number of brokers for a rate of messages, at least `rules.min`.

    `spare` is the fraction of `throughput_per_broker` that each broker keeps free.
    """
    usable_per_s = rules.throughput_per_broker * (1 - spare)
    return max(math.ceil(rate_per_s / usable_per_s - 1e-9), rules.min)


def choose_victim(sample: FleetSample) -> BrokerSample | None:
    """Return the broker to remove next: the emptiest one, or None if all are draining.

    A broker that is still starting has no data and is chosen first. Otherwise the fewest unconsumed
    messages decide, then the least disk usage, then the highest number in the name.
    """
    candidates = [broker for broker in sample.brokers if broker.state != DRAINING]
    if not candidates:
        return None
    newest_first = sorted(candidates, key=lambda broker: _natural(broker.name), reverse=True)
    return min(newest_first, key=lambda each: (each.state != STARTING, each.lag_messages, each.disk_percent))


# ---- scale out -------------------------------------------------------------------------------------------


def _exceeded(rules: Rules, now: FleetSample) -> Iterator[tuple[str, str]]:
    """Yield (rule, reason) of each threshold that the newest sample exceeds."""
    if rules.lag_seconds is not None and _is_lagging(rules, now):
        yield LAG, f"lag of {now.lag_seconds:,.1f} s exceeds {rules.lag_seconds:,.1f} s"
    if rules.disk_percent is not None and now.disk_percent > rules.disk_percent:
        yield DISK, f"mean disk usage of {now.disk_percent:.1f} % exceeds {rules.disk_percent:.1f} %"
    if rules.cpu_percent is not None and now.cpu_percent > rules.cpu_percent:
        yield CPU, f"mean CPU usage of {now.cpu_percent:.1f} % exceeds {rules.cpu_percent:.1f} %"


def _is_lagging(rules: Rules, sample: FleetSample) -> bool:
    # Without any delivery the consumers are stopped, which more brokers would not change.
    return rules.lag_seconds is not None and sample.lag_seconds > rules.lag_seconds and sample.out_per_s > 0


def _wait(rules: Rules, now: FleetSample, target: int, last_change_s: float | None) -> str:
    """Return why brokers cannot be added yet, or an empty string."""
    if now.running < target:
        return f"only {now.running} of {target} brokers are running"
    return _cooling(rules, now, last_change_s)


def _cooling(rules: Rules, now: FleetSample, last_change_s: float | None) -> str:
    """Return a text if the cool-down after the last change is not over, else an empty string."""
    if last_change_s is None or now.time_s - last_change_s >= rules.cool_down_s:
        return ""
    return f"the last change was {now.time_s - last_change_s:,.0f} s ago, within {rules.cool_down_s:,.0f} s"


def _raised(
    rules: Rules, target: int, wanted: int, rule: str, reason: str, figures: Mapping[str, float]
) -> Decision:
    allowed = min(wanted, target + rules.step, rules.max)
    if allowed == target:
        reason += f", but max is {rules.max}"
    return Decision(allowed, reason, figures, rule)


# ---- scale in --------------------------------------------------------------------------------------------


def _lowered(
    rules: Rules,
    history: Sequence[FleetSample],
    target: int,
    last_change_s: float | None,
    figures: Mapping[str, float],
) -> Decision:
    now = history[-1]
    recent = list(_since(history, now.time_s - rules.cool_down_s))
    if any(sample.in_per_s > sample.running * rules.throughput_per_broker for sample in recent):
        return Decision(target, f"brokers were saturated within {rules.cool_down_s:,.0f} s", figures)
    peak_per_s = max(sample.in_per_s for sample in recent)
    enough = brokers_for(rules, peak_per_s, rules.hysteresis)
    if enough >= target:
        text = f"{peak_per_s:,.0f} messages/s at most in {rules.cool_down_s:,.0f} s keep {target} brokers"
        return Decision(target, text, figures)
    wait = _cooling(rules, now, last_change_s) or _unsettled(rules, history, target, last_change_s)
    if wait:
        return Decision(target, f"{peak_per_s:,.0f} messages/s need {enough} brokers, but {wait}", figures)
    blocked = ""
    for fewer in range(max(enough, target - rules.step), target):
        blocked = _needs_more_than(rules, history, fewer)
        if not blocked:
            reason = (
                f"{peak_per_s:,.0f} messages/s at most in {rules.cool_down_s:,.0f} s need only "
                f"{fewer} brokers with {rules.hysteresis:.0%} to spare"
            )
            return Decision(fewer, reason, figures, IDLE)
    return Decision(target, f"{enough} brokers suffice for the rate, but {blocked}", figures)


def _unsettled(rules: Rules, history: Sequence[FleetSample], target: int, last_change_s: float | None) -> str:
    """Return why no broker can be removed at this time, or an empty string."""
    now = history[-1]
    # The rate that saturated brokers accept varies. One low sample must not cancel a start.
    if now.running < target and last_change_s is not None and now.time_s - last_change_s < START_S:
        return f"only {now.running} of {target} brokers are running"
    draining = [broker.name for broker in now.brokers if broker.state == DRAINING]
    if draining:
        return f"{', '.join(draining)} is still draining"
    if now.time_s - history[0].time_s < rules.cool_down_s:
        return f"there are samples of only {now.time_s - history[0].time_s:,.0f} s"
    return ""


def _needs_more_than(rules: Rules, history: Sequence[FleetSample], fewer: int) -> str:
    """Return why `fewer` brokers are too few, according to lag, disk and CPU, or an empty string."""
    now = history[-1]
    spare = 1 - rules.hysteresis
    if rules.lag_seconds is not None:
        expected_s = now.lag_seconds * max(now.running, fewer) / fewer
        if expected_s > rules.lag_seconds * spare:
            return f"{fewer} brokers would lag by {expected_s:,.1f} s"
        capacity_per_s = _proven_capacity(rules, history, fewer)
        if now.in_per_s > capacity_per_s * spare:
            return f"earlier lags show that {fewer} brokers deliver {capacity_per_s:,.0f} messages/s at most"
    running = [broker for broker in now.brokers if broker.state == RUNNING]
    if rules.disk_percent is not None and running:
        fullest = sorted((broker.disk_percent for broker in running), reverse=True)[:fewer]
        if sum(fullest) / len(fullest) > rules.disk_percent * spare:
            return f"the disks of the remaining brokers are full to {sum(fullest) / len(fullest):.1f} %"
    if rules.cpu_percent is not None:
        expected = now.cpu_percent * len(running) / fewer
        if expected > rules.cpu_percent * spare:
            return f"their mean CPU usage would be {expected:.1f} %"
    return ""


def _proven_capacity(rules: Rules, history: Sequence[FleetSample], brokers: int) -> float:
    """Return the rate that `brokers` brokers delivered at most while messages lagged, else infinity.

    Consumers of lagging messages read as fast as they can. A larger number of brokers delivered at least as
    much, a smaller number at least its share; both give an upper bound.
    """
    delivered: dict[int, float] = {}
    for sample in history:
        if sample.running and _is_lagging(rules, sample):
            delivered[sample.running] = max(sample.out_per_s, delivered.get(sample.running, 0.0))
    bounds = (rate * max(brokers / size, 1) for size, rate in delivered.items())
    return min(bounds, default=math.inf)


# ---- figures ---------------------------------------------------------------------------------------------


def _since(history: Sequence[FleetSample], begin_s: float) -> Iterator[FleetSample]:
    """Yield the samples from `begin_s` on, the newest first."""
    for sample in reversed(history):
        if sample.time_s < begin_s:
            return
        yield sample


def _figures(rules: Rules, history: Sequence[FleetSample], last_change_s: float | None) -> dict[str, float]:
    if not history:
        return {}
    now = history[-1]
    figures: dict[str, float] = {
        "in_per_s": now.in_per_s,
        "out_per_s": now.out_per_s,
        "lag_messages": now.lag_messages,
        "lag_seconds": now.lag_seconds,
        "disk_percent": now.disk_percent,
        "cpu_percent": now.cpu_percent,
        "running": now.running,
        "needed": brokers_for(rules, now.in_per_s),
    }
    if last_change_s is not None:
        figures["since_change_s"] = now.time_s - last_change_s
    return figures


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `broker-10` follows `broker-9`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]

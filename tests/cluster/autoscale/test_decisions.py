"""Decisions of the autoscaler, as functions of samples with injected times."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.autoscale.decisions import choose_victim, next_decision
from cluster.autoscale.rules import Rules
from cluster.autoscale.samples import BrokerSample, FleetSample

RULES = Rules(min=1, max=8, throughput_per_broker=100, hysteresis=0.2, cool_down_s=30, step=2)


def sample(time_s: float, *rates: float, **figures: float) -> FleetSample:
    """Return a sample of running brokers that receive and deliver `rates`."""
    return FleetSample(
        time_s,
        tuple(
            BrokerSample(f"broker-{n}", in_per_s=rate, **{"out_per_s": rate, **figures})
            for n, rate in enumerate(rates)
        ),
    )


def steady(until_s: float, *rates: float, **figures: float) -> list[FleetSample]:
    return [sample(time_s, *rates, **figures) for time_s in range(0, int(until_s) + 1, 5)]


def test_a_rate_above_the_threshold_adds_brokers_during_the_cool_down() -> None:
    """A saturated broker does not show how much more is offered, so `step` brokers are added."""
    decision = next_decision(RULES, [sample(10, 150)], target=1, last_change_s=9)

    assert (decision.target, decision.rule) == (3, "throughput")
    assert decision.reason == "150 messages/s need 2 brokers of 100 messages/s"


def test_a_decision_carries_the_figures_that_caused_it() -> None:
    now = sample(10, 150, 50, lag_seconds=2.5, lag_messages=40, disk_percent=60, cpu_percent=30)

    figures = next_decision(RULES, [now], target=2, last_change_s=4).figures

    assert figures == {
        "in_per_s": 200, "out_per_s": 200, "lag_messages": 80, "lag_seconds": 2.5, "disk_percent": 60,
        "cpu_percent": 30, "running": 2, "needed": 2, "since_change_s": 6,
    }  # fmt: skip


def test_one_decision_adds_at_most_step_brokers_and_never_more_than_max() -> None:
    assert next_decision(RULES, [sample(0, 790)], target=1).target == 3
    assert next_decision(RULES, [sample(0, 5_000)], target=7).target == 8
    at_limit = next_decision(RULES, [sample(0, 5_000)], target=8)
    assert (at_limit.target, at_limit.rule) == (8, "throughput")
    assert at_limit.reason.endswith("but max is 8")


def test_while_brokers_start_only_the_measured_rate_adds_more() -> None:
    starting = BrokerSample("broker-8", "starting")
    history = [FleetSample(10, (*sample(10, 150).brokers, starting))]

    assert next_decision(RULES, history, target=2).target == 2
    assert next_decision(RULES, [sample(10, 250)], target=2).target == 3


def test_a_target_outside_of_the_limits_is_corrected_at_once() -> None:
    assert next_decision(RULES, [], target=0).target == 1
    assert next_decision(RULES, [], target=12).target == 8
    assert next_decision(RULES, [], target=4).target == 4


def test_the_hysteresis_keeps_a_broker_that_the_load_nearly_needs() -> None:
    kept = next_decision(RULES, steady(60, 41, 41), target=2, last_change_s=0)  # 82 > 100 - 20 %
    removed = next_decision(RULES, steady(60, 39, 39), target=2, last_change_s=0)

    assert (kept.target, kept.rule) == (2, "steady")
    assert (removed.target, removed.rule) == (1, "idle")


def test_brokers_are_removed_only_after_the_cool_down() -> None:
    history = steady(60, 1, 1)

    early = next_decision(RULES, history, target=2, last_change_s=31)
    assert early.target == 2
    assert "the last change was 29 s ago, within 30 s" in early.reason
    assert next_decision(RULES, history, target=2, last_change_s=30).target == 1


def test_the_load_must_be_low_during_the_whole_cool_down() -> None:
    busy_before = [*steady(60, 1, 1)[:-3], sample(50, 80, 80), sample(55, 1, 1), sample(60, 1, 1)]

    assert next_decision(RULES, busy_before, target=2).target == 2
    assert next_decision(RULES, [*busy_before, sample(81, 1, 1)], target=2).target == 1


def test_no_broker_is_removed_after_saturation_within_the_cool_down() -> None:
    """Requested brokers are not given up because the saturated ones measure a low rate."""
    starting = BrokerSample("broker-8", "starting")
    history = [FleetSample(time_s, (*sample(time_s, 101).brokers, starting)) for time_s in range(0, 61, 5)]

    decision = next_decision(RULES, history, target=4, last_change_s=0)
    assert decision.target == 4
    assert "brokers were saturated within 30 s" in decision.reason


@pytest.mark.parametrize(("age_s", "target"), [(299, 2), (300, 1)])
def test_low_sample_of_a_saturated_broker_does_not_cancel_a_start(age_s: float, target: int) -> None:
    """What a saturated broker accepts varies; the broker that was requested for it keeps starting."""
    rules = RULES.model_copy(update={"cool_down_s": 1, "hysteresis": 0})
    starting = BrokerSample("broker-8", "starting")
    history = [FleetSample(time_s, (*sample(time_s, 95).brokers, starting)) for time_s in range(1, age_s + 1)]

    decision = next_decision(rules, history, target=2, last_change_s=0)
    assert decision.target == target
    assert ("only 1 of 2 brokers are running" in decision.reason) == (target == 2)


def test_messages_that_producers_held_back_add_no_broker() -> None:
    """They arrive at a broker that joined, within one sample."""
    burst = [sample(0, 100), sample(1, 150, 150)]

    assert next_decision(RULES, [*burst, sample(2, 60, 60)], target=2).target == 2
    assert next_decision(RULES, burst, target=2).target == 2
    assert next_decision(RULES, [*burst, sample(2, 140, 140)], target=2).target > 2


def test_brokers_are_not_removed_before_there_are_enough_samples() -> None:
    decision = next_decision(RULES, steady(25, 1, 1), target=2)
    assert decision.target == 2
    assert "samples of only 25 s" in decision.reason


def test_one_decision_removes_at_most_step_brokers() -> None:
    assert next_decision(RULES, steady(60, 1, 1, 1, 1, 1), target=5).target == 3


def test_no_broker_is_removed_while_another_one_drains() -> None:
    draining = BrokerSample("broker-9", "draining", lag_messages=5)
    history = [FleetSample(each.time_s, (*each.brokers, draining)) for each in steady(60, 1, 1)]

    decision = next_decision(RULES, history, target=2)
    assert decision.target == 2
    assert "broker-9 is still draining" in decision.reason


@pytest.mark.parametrize(
    ("rule", "figure"),
    [
        ({"lag_seconds": 10}, {"lag_seconds": 12}),
        ({"disk_percent": 70}, {"disk_percent": 75}),
        ({"cpu_percent": 80}, {"cpu_percent": 85}),
    ],
)
def test_lag_disk_and_cpu_add_brokers_once_per_cool_down(
    rule: dict[str, float], figure: dict[str, float]
) -> None:
    rules = RULES.model_copy(update=rule)
    now = sample(100, 90, 90, **figure)

    raised = next_decision(rules, [now], target=2, last_change_s=70)
    assert (raised.target, raised.rule) == (4, next(iter(rule)).split("_")[0])
    assert "exceeds" in raised.reason
    assert next_decision(rules, [now], target=2, last_change_s=71).target == 2
    starting = next_decision(rules, [now], target=4, last_change_s=70)
    assert starting.target == 4
    assert "only 2 of 4 brokers are running" in starting.reason


def test_a_lag_without_any_delivery_adds_no_broker() -> None:
    """More brokers do not help while the consumers are stopped."""
    rules = RULES.model_copy(update={"lag_seconds": 10})
    assert next_decision(rules, [sample(100, 50, lag_seconds=90, out_per_s=0)], target=1).target == 1


def test_no_broker_is_removed_whose_disk_or_cpu_the_others_lack() -> None:
    full_disks = RULES.model_copy(update={"disk_percent": 80})
    disks = [
        FleetSample(t, tuple(BrokerSample(f"b-{n}", disk_percent=d) for n, d in enumerate((85, 85, 5))))
        for t in range(0, 61, 5)
    ]
    assert next_decision(full_disks, disks, target=3).target == 3

    busy = RULES.model_copy(update={"cpu_percent": 80})
    assert next_decision(busy, steady(60, 5, 5, cpu_percent=40), target=2).target == 2  # one broker: 80 %
    assert next_decision(busy, steady(60, 5, 5, cpu_percent=30), target=2).target == 1


def test_no_broker_is_removed_if_the_others_would_lag() -> None:
    rules = RULES.model_copy(update={"lag_seconds": 10})
    assert next_decision(rules, steady(60, 5, 5, lag_seconds=5), target=2).target == 2  # one broker: 10 s
    assert next_decision(rules, steady(60, 5, 5, lag_seconds=3), target=2).target == 1


@pytest.mark.parametrize(("rate_per_s", "target"), [(55, 2), (45, 1)])
def test_size_that_lagged_is_not_chosen_again_for_the_same_rate(rate_per_s: float, target: int) -> None:
    """One broker delivered 60 messages/s while messages lagged, of which 20 % must be spare."""
    rules = RULES.model_copy(update={"lag_seconds": 10})
    lagged = sample(0, 90, out_per_s=60, lag_seconds=20)
    later = [sample(time_s, rate_per_s / 2, rate_per_s / 2) for time_s in range(5, 66, 5)]
    assert next_decision(rules, [lagged, *later], target=2).target == target


def test_lag_of_more_brokers_does_not_limit_what_fewer_deliver() -> None:
    """The consumers may be the limit: two of three brokers that lagged at 90 messages/s may deliver these."""
    rules = RULES.model_copy(update={"lag_seconds": 10, "step": 1})
    lagged = sample(0, 30, 30, 30, lag_seconds=20)
    later = [sample(time_s, 18, 18, 18) for time_s in range(5, 66, 5)]
    assert next_decision(rules, [lagged, *later], target=3).target == 2


def test_the_emptiest_broker_is_removed_first() -> None:
    brokers = (
        BrokerSample("broker-1", lag_messages=5, disk_percent=1),
        BrokerSample("broker-9", lag_messages=0, disk_percent=20),
        BrokerSample("broker-10", lag_messages=0, disk_percent=20),
        BrokerSample("broker-2", "draining"),
    )
    starting = BrokerSample("broker-3", "starting")

    assert choose_victim(FleetSample(0, brokers)).name == "broker-10"
    assert (
        choose_victim(FleetSample(0, (*brokers, BrokerSample("broker-8", disk_percent=9)))).name == "broker-8"
    )
    assert choose_victim(FleetSample(0, (*brokers, starting))).name == "broker-3"
    assert choose_victim(FleetSample(0, (BrokerSample("broker-4"), starting))).name == "broker-3"
    assert choose_victim(FleetSample(0, (brokers[3],))) is None


@settings(max_examples=100, deadline=None)
@given(
    load_per_s=st.floats(0, 2_000),
    capacity_per_s=st.floats(20, 400),
    hysteresis=st.floats(0, 0.9),
    step=st.integers(1, 5),
    cool_down_s=st.integers(0, 60),
    boot_s=st.integers(0, 30),
    start=st.integers(1, 10),
)
def test_a_constant_load_never_makes_the_target_oscillate(
    load_per_s: float,
    capacity_per_s: float,
    hysteresis: float,
    step: int,
    cool_down_s: int,
    boot_s: int,
    start: int,
) -> None:
    """After the first removal the target never rises, even if brokers deliver less than the rules say.

    If the target was raised because of lag, it may fall again only to a size that does not lag.
    """
    rules = Rules(
        max=10, throughput_per_broker=100, lag_seconds=5, cpu_percent=90, hysteresis=hysteresis, step=step,
        cool_down_s=cool_down_s,
    )  # fmt: skip
    history: list[FleetSample] = []
    target, last_change_s, running, ready_s = start, None, start, math.inf
    waiting = 0.0
    changes: list[int] = []
    for now_s in range(0, 1_200, 5):
        if now_s >= ready_s:
            running, ready_s = target, math.inf
        capacity = running * capacity_per_s
        out_per_s = min(load_per_s + waiting / 5, capacity)
        waiting = max(waiting + (load_per_s - out_per_s) * 5, 0)
        brokers = tuple(
            BrokerSample(
                f"b-{n}", in_per_s=load_per_s / running, out_per_s=out_per_s / running,
                lag_seconds=waiting / capacity, cpu_percent=min(80 * out_per_s / capacity, 100),
            )
            for n in range(running)
        )  # fmt: skip
        history.append(FleetSample(now_s, brokers))
        decided = next_decision(rules, history, target, last_change_s).target
        assert abs(decided - target) <= step
        if decided != target:
            changes.append(decided - target)
            running, ready_s = (decided, math.inf) if decided < target else (running, now_s + boot_s)
            target, last_change_s = decided, now_s
    turns = sum((a < 0) != (b < 0) for a, b in pairwise(changes))
    lagged = load_per_s > rules.min * capacity_per_s
    assert turns <= (2 if lagged else 1), changes
    assert turns == 0 or lagged or changes[0] > 0, changes


@pytest.mark.parametrize(
    ("given_", "key", "message"),
    [
        ({"min": 5, "max": 3}, (), "min 5 is greater than max 3: lower min or raise max"),
        ({"max": 3, "step": 4}, (), "step 4 exceeds max - min = 2"),
        ({"max": 0}, ("max",), "greater than or equal to 1"),
        ({"max": 2, "throughput_per_broker": -1}, ("throughput_per_broker",), "greater than 0"),
        ({"max": 2, "hysteresis": 1.0}, ("hysteresis",), "less than 1"),
        ({"max": 2, "disk_percent": 120}, ("disk_percent",), "less than or equal to 100"),
        ({"max": 2, "cooldown_s": 3}, ("cooldown_s",), "Extra inputs"),
    ],
)
def test_invalid_rules_are_refused_with_their_key(
    given_: dict[str, float], key: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Rules.model_validate({"throughput_per_broker": 100, **given_})
    found = caught.value.errors()[0]
    assert found["loc"] == key
    assert message in found["msg"]

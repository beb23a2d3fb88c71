"""Simulated experiments: brokers, nodes and backlog of the model, and the measures of the series."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.autoscale.experiment import Experiment, load_experiment
from cluster.autoscale.model import ClusterModel
from cluster.autoscale.samples import Sample
from cluster.autoscale.series import Point, latency_percentiles, node_seconds, reliefs, totals
from cluster.autoscale.simulation import simulate, simulate_fixed
from cluster.autoscale.summary import deviations, summarize


def experiment(*overrides: str) -> Experiment:
    return load_experiment("configs/experiments/step.yaml", overrides)


def states(sample: Sample) -> dict[str, str]:
    return {broker.name: broker.state for broker in sample.brokers}


def test_a_broker_runs_after_its_node_booted_and_it_started() -> None:
    model = ClusterModel(experiment())  # node 8 s, broker 3 s
    model.create("broker-0")

    model.advance(7)
    assert states(model.observe()) == {"broker-0": "starting"}
    assert (model.last.nodes, model.last.nodes_booting) == (0, 1)
    model.advance(8)
    model.observe()
    assert (model.last.nodes, model.last.nodes_booting) == (1, 0)
    model.advance(11)
    assert states(model.observe()) == {"broker-0": "running"}


def test_a_broker_on_an_unused_node_skips_the_boot() -> None:
    model = ClusterModel(experiment("idle_timeout_s=30"))
    model.start(2)
    model.advance(10)
    model.drain("broker-1")
    model.advance(20)
    assert states(model.observe()) == {"broker-0": "running"}
    model.create("broker-1")
    model.advance(23)
    assert states(model.observe())["broker-1"] == "running"


def test_brokers_accept_and_deliver_at_most_their_cap() -> None:
    model = ClusterModel(experiment("profile.steps[0].rate_per_s=1000"))
    model.start(1)
    model.advance(10)

    broker = model.observe().brokers[0]
    assert (broker.in_per_s, broker.out_per_s) == (300, 300)
    assert model.last.waiting_messages == 7_000
    assert model.last.backlog == 7_000


def test_messages_are_stored_while_consumers_are_slower_than_brokers() -> None:
    model = ClusterModel(experiment("caps.consumer_per_s=25"))
    model.start(1)
    model.advance(10)

    broker = model.observe().brokers[0]
    assert (broker.in_per_s, broker.out_per_s) == (200, 100)
    assert (broker.lag_messages, broker.lag_seconds) == (1_000, 10)


def test_a_draining_broker_accepts_nothing_and_stays_until_its_messages_are_consumed() -> None:
    model = ClusterModel(experiment("caps.consumer_per_s=25"))
    model.start(2)
    model.advance(10)
    model.observe()
    model.drain("broker-1")
    model.advance(12)
    draining = model.observe().brokers[1]
    assert (draining.state, draining.in_per_s) == ("draining", 0)
    assert draining.lag_messages > 0
    model.advance(16)
    assert states(model.observe())["broker-1"] == "draining"
    model.advance(120)
    sample = model.observe()
    assert sample.brokers[0].lag_messages > 0
    assert states(sample) == {"broker-0": "running"}


def test_an_unused_node_leaves_after_the_idle_timeout() -> None:
    model = ClusterModel(experiment("idle_timeout_s=5"))
    model.start(2)
    model.drain("broker-1")
    model.advance(6)
    model.observe()
    assert model.last.nodes == 2
    model.advance(8)
    model.observe()
    assert model.last.nodes == 1


@pytest.mark.parametrize("name", ["step", "daily", "burst"])
def test_ready_experiments_keep_their_limits(name: str) -> None:
    ready = load_experiment(f"{name}.yaml")
    elastic = simulate(ready)

    summary = summarize(ready, elastic, simulate_fixed(ready))

    assert summary.holds, summary.checks
    assert len({point.brokers_running for point in elastic.series}) > 2
    assert max(point.nodes for point in elastic.series) <= 4
    assert elastic.changes
    assert all(change.decision.figures and change.decision.reason for change in elastic.changes)


def test_a_single_rise_and_fall_changes_the_direction_once() -> None:
    changes = [change.decision.target - change.before for change in simulate(experiment()).changes]
    assert changes == [2, 1, -2, -1]


def test_a_day_of_a_hundred_nodes_is_simulated() -> None:
    fleet = load_experiment("fleet.yaml")
    elastic = simulate(fleet)

    offered, delivered = totals(elastic.series)
    assert elastic.series[-1].time_s >= 86_400
    assert max(point.nodes for point in elastic.series) > 80
    assert delivered == pytest.approx(offered)


def test_an_experiment_without_a_rise_changes_nothing() -> None:
    calm = experiment("profile={kind: step, steps: [{at_s: 0, rate_per_s: 200}]}")
    elastic = simulate(calm)
    assert elastic.changes == []
    assert node_seconds(elastic.series) == 120


def test_a_load_above_the_capacity_exceeds_the_limit() -> None:
    loaded = experiment("profile={kind: step, steps: [{at_s: 0, rate_per_s: 3000}]}", "drain_s=10")
    summary = summarize(loaded, simulate(loaded), simulate_fixed(loaded))
    assert {check.measure: check.holds for check in summary.checks}["delivered_ratio"] is False
    assert not summary.holds


# ---- measures of a series --------------------------------------------------------------------------------


def test_the_time_to_relieve_excludes_booting_nodes() -> None:
    backlogs = [0, 0, 500, 900, 1_300, 1_700, 1_500, 200, 0, 0, 800, 400, 0]
    series = [
        Point(time_s, offered_per_s=100, waiting_messages=backlog, nodes_booting=2 <= time_s < 4)
        for time_s, backlog in enumerate(backlogs)
    ]

    assert [(each.begin_s, each.end_s, each.seconds) for each in reliefs(series)] == [(1, 5, 2), (9, 10, 1)]


def test_node_seconds_are_the_area_below_the_nodes() -> None:
    assert node_seconds([Point(0, nodes=1), Point(10, nodes=3), Point(20, nodes=0), Point(30)]) == 40


def test_latencies_are_those_of_messages_delivered_in_order() -> None:
    series = [
        Point(0),
        Point(10, offered_per_s=10),
        Point(20, delivered_per_s=5),
        Point(30, delivered_per_s=5),
    ]
    lowest, median, highest = latency_percentiles(series, (0, 50, 100))
    assert (round(lowest), round(median), round(highest)) == (10, 15, 20)


def test_idle_times_are_no_latency() -> None:
    busy = {"offered_per_s": 10, "delivered_per_s": 10}
    series = [Point(0), Point(10, **busy), Point(500), Point(510, **busy)]
    assert latency_percentiles(series, (50, 100)) == pytest.approx([0, 0])


def test_deviations_compare_the_known_measures_of_two_summaries() -> None:
    simulated = {"elastic": {"lost": None, "node_seconds": 90.0}}
    measured = {"elastic": {"lost": 0, "node_seconds": 100.0}}
    assert deviations(simulated, measured) == [("node_seconds", 90.0, 100.0)]


def test_a_replay_is_simulated_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("time_s,rate_per_s\n0,100\n30,500\n")
    text = Path("configs/experiments/step.yaml").read_text()
    begin, end = text.index("profile:"), text.index("duration_s:")
    file = tmp_path / "replay.yaml"
    file.write_text(text[:begin] + "profile: {kind: replay, file: rates.csv}\n" + text[end:])

    assert simulate(load_experiment(file)).changes[0].time_s > 30

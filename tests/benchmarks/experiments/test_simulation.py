"""Simulated experiments: brokers, nodes and backlog of the model, and the measures of the series."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.experiment import Experiment, load_experiment
from benchmarks.experiments.model import ClusterModel
from benchmarks.experiments.series import Point, latency_percentiles, node_seconds, reliefs, totals
from benchmarks.experiments.simulation import simulate, simulate_fixed
from benchmarks.experiments.summary import deviations, summarize

STEPS = "[{at_s: 0, rate_per_s: 200}, {at_s: 30, rate_per_s: 800}, {at_s: 90, rate_per_s: 200}]"
RATES = (
    f"profile={{kind: step, steps: {STEPS}}}",
    "rules.throughput_per_broker=270",
    "caps={broker_per_s: 300, consumer_per_s: 400}",
)


def experiment(*overrides: str) -> Experiment:
    return load_experiment("configs/experiments/step.yaml", [*RATES, *overrides])


def running(model: ClusterModel, count: int) -> ClusterModel:
    model.start(count)
    return model


def test_a_broker_serves_after_its_node_booted_and_it_started() -> None:
    model = ClusterModel(experiment("model.node_join_s=2", "node_types.broker.boot_delay_s=6"))  # broker 3 s
    assert model.create([]) == "broker-0"

    model.advance(7)
    assert [each.is_serving for each in model.observe()] == [False]
    assert (model.last.nodes, model.last.nodes_booting, model.last.brokers_starting) == (0, 1, 1)
    model.advance(8)
    model.observe()
    assert (model.last.nodes, model.last.nodes_booting) == (1, 0)
    model.advance(11)
    assert [each.is_serving for each in model.observe()] == [True]


def test_clients_use_an_equipped_broker_after_their_route_refresh() -> None:
    model = running(ClusterModel(experiment()), 1)
    model.create(["broker-0"])
    model.advance(20)
    model.observe()
    model.equip("broker-1")
    model.advance(22)
    assert model.observe()[1].figures.in_per_s == 0
    model.advance(23)
    assert model.observe()[1].figures.in_per_s == 100


def test_a_broker_on_an_unused_node_skips_the_boot() -> None:
    model = running(ClusterModel(experiment("idle_timeout_s=30")), 2)
    model.remove("broker-1", {})
    model.advance(20)
    assert model.create(["broker-0"]) == "broker-1"
    model.advance(23)
    assert [each.is_serving for each in model.observe()] == [True, True]


def test_brokers_accept_and_deliver_at_most_their_cap() -> None:
    model = running(ClusterModel(experiment("profile.steps[0].rate_per_s=1000")), 1)
    model.advance(10)

    broker = model.observe()[0].figures
    assert (broker.in_per_s, broker.out_per_s) == (300, 300)
    assert model.last.waiting_messages == 7_000
    assert model.last.backlog == 7_000


def test_messages_are_stored_while_consumers_are_slower_than_brokers() -> None:
    model = running(ClusterModel(experiment("caps.consumer_per_s=25")), 1)
    model.advance(10)

    broker = model.observe()[0].figures
    assert (broker.in_per_s, broker.out_per_s) == (200, 100)
    assert (broker.lag_messages, broker.lag_seconds) == (1_000, 10)


def test_a_draining_broker_accepts_messages_until_the_routes_are_refreshed() -> None:
    model = running(ClusterModel(experiment("caps.consumer_per_s=25")), 2)
    model.advance(10)
    before = model.drain("broker-1", "start")
    model.advance(12)
    still = model.drain("broker-1", "start")
    assert still.messages_in > before.messages_in
    model.advance(20)
    model.observe()
    after = model.drain("broker-1", "close")
    model.advance(21)
    assert model.observe()[1].figures.in_per_s == 0
    assert after.groups[0].unread > 0
    assert model.last.brokers_draining == 1


def test_a_cancelled_drain_lets_the_broker_accept_messages_again() -> None:
    model = running(ClusterModel(experiment()), 2)
    model.drain("broker-1", "close")
    model.advance(10)
    model.drain("broker-1", "cancel")
    model.observe()
    model.advance(11)
    assert model.observe()[1].figures.in_per_s == 100


def test_an_unused_node_leaves_after_the_idle_timeout() -> None:
    model = running(ClusterModel(experiment("idle_timeout_s=5")), 2)
    model.remove("broker-1", {})
    model.advance(4)
    model.observe()
    assert model.last.nodes == 2
    model.advance(5)
    model.observe()
    assert model.last.nodes == 1


def test_the_controller_drains_and_removes_brokers_without_a_lost_message() -> None:
    elastic = simulate(experiment())
    offered, delivered = totals(elastic.series)
    assert delivered == pytest.approx(offered)
    assert max(point.brokers_draining for point in elastic.series) == 1
    assert elastic.series[-1].brokers_running < 4


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
    (tmp_path / "rates.csv").write_text("time_s,rate_per_s\n0,50\n30,200\n")
    text = Path("configs/experiments/step.yaml").read_text()
    begin, end = text.index("profile:"), text.index("duration_s:")
    file = tmp_path / "replay.yaml"
    file.write_text(text[:begin] + "profile: {kind: replay, file: rates.csv}\n" + text[end:])

    assert simulate(load_experiment(file)).changes[0].time_s > 30

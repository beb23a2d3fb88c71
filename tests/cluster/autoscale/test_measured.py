"""A short experiment with real brokers: all measures that must hold, and no process left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from cluster.autoscale.experiment import load_experiment
from cluster.autoscale.measured import run_measured, topology_of
from cluster.autoscale.simulation import simulate_fixed
from cluster.autoscale.summary import summarize
from cluster.session.ray_head import MARK_ENV
from cluster.topology.topology import Topology, find_problems
from tests.cluster.conftest import RayMQ

SHORT = """
profile:
  kind: step
  steps: [{at_s: 0, rate_per_s: 20}, {at_s: 10, rate_per_s: 60}, {at_s: 70, rate_per_s: 10}]
duration_s: 110
rules: {min: 1, max: 2, throughput_per_broker: 35, cool_down_s: 8, hysteresis: 0.1}
node_types: {broker: {resources: {broker_slot: 1}, max: 2, boot_delay_s: 1}}
caps: {broker_per_s: 40, consumer_per_s: 100}
clients: {producers: 1, consumers: 2, keys: 20}
"""


@pytest.fixture
def short(tmp_path: Path) -> Path:
    file = tmp_path / "short.yaml"
    file.write_text(SHORT)
    return file


def test_topology_of_a_run_caps_each_broker(short: Path, tmp_path: Path) -> None:
    experiment = load_experiment(short)
    content = topology_of(experiment, "auto", "run-1", is_elastic=True)
    assert not find_problems(Topology.model_validate(content), tmp_path)
    assert content["broker_settings"]["max_sends_per_s"] == 40
    assert (content["brokers"]["min"], content["brokers"]["max"]) == (1, 2)
    assert topology_of(experiment, "auto", "run-1", is_elastic=False)["brokers"]["min"] == 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.extended
def test_short_experiment_loses_nothing_and_leaves_no_process(raymq: RayMQ, short: Path) -> None:
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    experiment = load_experiment(short)
    run = run_measured(experiment, lambda _: None, is_elastic=True)
    summary = summarize(experiment, run, simulate_fixed(experiment))
    measures = summary.elastic
    assert (measures.lost, measures.failed_sends, measures.duplicated) == (0, 0, 0), run.notes
    assert measures.delivered_ratio >= 0.999
    assert max(point.brokers_running for point in run.series) == 2
    assert any("each broker accepts at most 40 messages/s" in note for note in run.notes)
    marks = [
        process.info["environ"][MARK_ENV]
        for process in psutil.process_iter(["environ", "cmdline"])
        if "raymq-experiment" in " ".join(process.info["cmdline"] or ())
        and MARK_ENV in (process.info["environ"] or {})
    ]
    assert not marks

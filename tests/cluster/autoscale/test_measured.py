"""Short experiments with real brokers: all measures that must hold, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from actors.host import ray_port
from benchmarks.experiments.experiment import load_experiment
from benchmarks.experiments.measured import run_measured, topology_of
from benchmarks.experiments.run import Trial
from benchmarks.experiments.run_home import PREFIX
from benchmarks.experiments.simulation import simulate_fixed
from benchmarks.experiments.summary import Summary, summarize
from cluster.control.session.ray_head import read_record
from cluster.control.session.ray_session import SessionMode, Way, session
from cluster.control.topology.problems import find_problems
from cluster.control.topology.topology import Topology
from tests.cluster.autoscale.conftest import ElasticCluster
from tests.cluster.conftest import REPO, RayMQ

SHORT = """
profile:
  kind: step
  steps: [{at_s: 0, rate_per_s: 20}, {at_s: 5, rate_per_s: 60}, {at_s: 45, rate_per_s: 10}]
duration_s: 75
rules: {min: 1, max: 2, throughput_per_broker: 35, cool_down_s: 5, hysteresis: 0.1}
node_types: {broker: {resources: {broker_slot: 1}, max: 2, boot_delay_s: 1}}
caps: {broker_per_s: 40, consumer_per_s: 100}
clients: {producers: 1, consumers: 2, keys: 20}
drain_s: 240
limits: {relief_s: 600}
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


def processes_of_runs() -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if PREFIX in " ".join(process.info["cmdline"] or ())
    ]


def judged(file: Path, run: Trial, *overrides: str) -> Summary:
    experiment = load_experiment(file, overrides)
    summary = summarize(experiment, run, simulate_fixed(experiment))
    measures = summary.elastic
    assert (measures.lost, measures.failed_sends, measures.out_of_order) == (0, 0, 0), summary.notes
    assert measures.delivered_ratio >= 0.999
    assert max(point.brokers_running for point in run.series) == 2
    return summary


def actors_of_runs(address: str, home: Path) -> list[str]:
    topology = Topology.model_validate({"brokers": {"pattern": "b-{n}", "max": 1, "resource": "x"}})
    with session(topology, home, Way(SessionMode.ATTACHED, address)):
        return [where.name for where in ray_port.list_actors() if where.namespace.startswith(PREFIX)]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.extended
def test_short_experiment_loses_nothing_and_leaves_no_process(raymq: RayMQ, short: Path) -> None:
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    before = processes_of_runs()
    run = run_measured(load_experiment(short), lambda _: None, is_elastic=True)
    summary = judged(short, run)
    assert summary.elastic.duplicated == 0
    assert any("each broker accepts at most 40 messages/s" in note for note in summary.notes)
    assert set(processes_of_runs()) <= set(before)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("kills", [("node", "controller"), ("gcs",)], ids="-".join)
@pytest.mark.parametrize("during", ["scale_out", "scale_in"])
def test_experiment_with_faults_reaches_its_target_and_loses_nothing(
    raymq: RayMQ, short: Path, during: str, kills: tuple[str, ...]
) -> None:
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    faults = ", ".join(f"{{kill: {kill}, during: {during}}}" for kill in kills)
    # the last load lasts until a broker on another node is drained
    overrides = [f"faults=[{faults}]", "duration_s=180", "rules.cool_down_s=10"]
    run = run_measured(load_experiment(short, overrides), lambda _: None, is_elastic=True)
    summary = judged(short, run, *overrides)
    recovered = next(check for check in summary.checks if check.measure == "faults_recovered")
    assert (recovered.value, recovered.holds) == (len(kills), True), summary.notes
    assert sum("the target was reached after" in note for note in summary.notes) == len(kills)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.extended
def test_experiment_on_a_running_ray_stops_only_its_actors(elastic: ElasticCluster, short: Path) -> None:
    record = read_record(elastic.ray.home)
    assert record is not None
    run = run_measured(load_experiment(short), lambda _: None, is_elastic=True, address=record.address)
    summary = judged(short, run)
    assert any(f"those of the Ray cluster at {record.address}" in note for note in summary.notes)
    assert actors_of_runs(record.address, elastic.ray.home) == []
    assert elastic.raylets()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.extended
def test_experiment_in_a_submitted_job(elastic: ElasticCluster, short: Path, tmp_path: Path) -> None:
    record = read_record(elastic.ray.home)
    assert record is not None
    ray = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", record.dashboard, "--"]
    experiment = ["-m", "cluster.autoscale", str(short), "--output", str(tmp_path / "result"), "--no-plots"]
    done = subprocess.run(
        [*ray, sys.executable, *experiment], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    assert (summary["kind"], summary["elastic"]["lost"], summary["elastic"]["out_of_order"]) == (
        "measured",
        0,
        0,
    )
    assert actors_of_runs(record.address, elastic.ray.home) == []

"""`raymq autoscale dry-run`: the decisions that the rules of a topology would make for a running cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster import launch
from cluster.cli.operations.autoscale import app
from tests.cluster.autoscale.conftest import ElasticCluster, elastic_brokers, write_topology


def dry_run(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["dry-run", "-t", str(file), *arguments])


def test_dry_run_without_rules_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    file = tmp_path / "elastic.yaml"
    write_topology(file)
    result = dry_run(file)
    assert (result.exit_code, "autoscale.rules" in result.output) == (2, True), result.output


def test_dry_run_of_a_stopped_cluster_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    file = tmp_path / "elastic.yaml"
    write_topology(file, autoscale={"rules": {"throughput_per_broker": 20}}, ray={"address": "new"})
    result = dry_run(file)
    assert (result.exit_code, "is not running; `raymq up` starts it" in result.output) == (2, True)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.extended
def test_dry_run_decides_for_a_cluster_without_autoscaler(elastic: ElasticCluster) -> None:
    write_topology(elastic.file, brokers=elastic_brokers(min=2))
    launch.up(elastic.file)
    rules = "autoscale={interval_s: 0.2, rules: {min: 1, throughput_per_broker: 20, cool_down_s: 1}}"
    result = dry_run(elastic.file, "--set", rules, "--decisions", "12")
    assert result.exit_code == 0, result.output
    assert "2 brokers, would be 1: 0 messages/s" in result.output
    brokers = [each.actor.name for each in launch.status(elastic.topology) if "broker-" in each.actor.name]
    assert len(brokers) == 2

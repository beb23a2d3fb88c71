"""`raymq up` and `raymq autoscale` with bad input: the key path and a remedy, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from tests.cluster.autoscale.conftest import elastic_brokers, write_topology

RULES = {"rules": {"throughput_per_broker": 100}}


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    file = tmp_path / "elastic.yaml"
    fixed = {"name": "fixed", "listen_port": 0}
    write_topology(file, autoscale=RULES, brokers=[elastic_brokers(), fixed], ray={"address": "new"})
    return file


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(build(arguments), list(arguments))
    assert result.exit_code == 2, result.output
    assert result.output.count("\n") == 1
    return result.output.strip()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("brokers.0.min=4", "brokers[0].min: min 4 is greater than max 3; lower min or raise max"),
        ("autoscale.rules.max=4", "autoscale.rules.max: 4 exceeds brokers[0].max 3; lower it or raise that"),
        ("autoscale.rules.min=4", "autoscale.rules: min 4 is greater than max 3: lower min or raise max"),
        ("autoscale.rules.step=9", "autoscale.rules: step 9 exceeds max - min = 2: lower step, or raise max"),
        ("autoscale.rules.lag_seconds=-1", "autoscale.rules.lag_seconds: -1: input should be greater than 0"),
        ("autoscale.interval_s=0", "autoscale.interval_s: 0 is less than the minimum 0.1"),
        ("autoscale.export_to=archive", "autoscale.export_to: archive is not an absolute path"),
        ("autoscale=7", "autoscale: 7: input should be a valid dictionary"),
    ],
)
def test_up_refuses_an_invalid_autoscaler(topology: Path, override: str, message: str) -> None:
    shown = refused("up", str(topology), "--set", override)
    assert message in shown
    assert not (topology.parent / "home" / "ray.json").exists()


@pytest.mark.parametrize("command", ["status", "pause", "resume"])
def test_autoscale_commands_need_a_running_cluster(topology: Path, command: str) -> None:
    shown = refused("autoscale", command, "--topology", str(topology))
    assert shown == "cluster Elastic is not running; `raymq up` starts it"
    assert "nowhere.yaml: no such file" in refused("autoscale", command, "--topology", "nowhere.yaml")


def test_release_needs_an_elastic_broker_and_a_running_cluster(topology: Path) -> None:
    for wrong in ("fixed", "broker-4", "broker-"):
        shown = refused("autoscale", "release", wrong, "--yes", "--topology", str(topology))
        assert shown == f"{wrong} is not an elastic broker; the topology has broker-{{n}}"
    for right in ("broker-3", "broker-3-0"):
        shown = refused("autoscale", "release", right, "--yes", "--topology", str(topology))
        assert shown == "cluster Elastic is not running; `raymq up` starts it"

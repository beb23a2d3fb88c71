"""Ports of the metrics of a topology, and the file for Prometheus' file discovery."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.control.exposure import exposed
from cluster.control.kinds import make_specs
from cluster.control.launch_errors import LaunchFailed
from cluster.control.metrics_ports import moved_metrics_ports
from cluster.control.scrape_targets import FILE_NAME, metrics_address, remove_target, write_targets
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import load_with_source

SOURCE = load_with_source(None, (), ())[1]


def topology(*brokers: dict[str, object], **keys: object) -> Topology:
    return Topology.model_validate(
        {"brokers": list(brokers) or [{"name": "b", "listen_port": 10911}], **keys}
    )


def specs(given: Topology, home: Path) -> Sequence[ActorSpec]:
    return make_specs(given, home, {}, SOURCE)


def addresses(given: Topology, home: Path) -> dict[str, str | None]:
    return {spec.name: metrics_address(spec) for spec in specs(given, home)}


def test_metrics_are_on_the_port_above_that_of_the_process(tmp_path: Path) -> None:
    found = addresses(
        topology({"name": "b", "listen_port": 10911}, {"name": "c", "listen_port": 10921}), tmp_path
    )
    assert found == {
        "nameserver-0": "127.0.0.1:10876", "rebalancer-0": None, "b-0": "127.0.0.1:11911",
        "c-0": "127.0.0.1:11921",
    }  # fmt: skip


def test_default_port_of_metrics_avoids_the_ports_of_other_processes(tmp_path: Path) -> None:
    names = [{"name": name, "listen_port": port} for name, port in (("b", 10911), ("c", 11911), ("d", 12911))]
    given = topology(*names)
    assert moved_metrics_ports(given) == {"b-0": 13911, "c-0": 14911, "d-0": 15911}
    assert addresses(given, tmp_path)["b-0"] == "127.0.0.1:13911"
    own = topology({"name": "b", "listen_port": 10911, "settings": {"metrics_port": 11921}},
                   {"name": "c", "listen_port": 10921})  # fmt: skip
    assert addresses(own, tmp_path)["b-0"] == "127.0.0.1:11921"
    assert addresses(own, tmp_path)["c-0"] == "127.0.0.1:12921"


def test_console_and_autoscaler_are_targets_too(tmp_path: Path) -> None:
    elastic = {"pattern": "b-{n}", "max": 2, "resource": "slot", "listen_port": 10911}
    given = {"autoscale": {"rules": {"throughput_per_broker": 10}}, "consoles": [{}]}
    found = addresses(topology(elastic, **given), tmp_path)
    assert (found["console-0"], found["autoscaler"]) == ("127.0.0.1:9085", "127.0.0.1:9086")
    moved = topology(elastic, **given, gateways=[{"listen_port": 9086}])
    found = addresses(moved, tmp_path)
    assert (found["gateway-0"], found["autoscaler"]) == ("127.0.0.1:10086", "127.0.0.1:11086")
    off = {"autoscale": {**given["autoscale"], "metrics_port": -1}}
    assert addresses(topology(elastic, **off), tmp_path)["autoscaler"] is None
    public = {"autoscale": {**given["autoscale"], "metrics_host": "0.0.0.0"}}
    assert [path for path, _ in exposed(topology(elastic, **public))] == [("autoscale", "metrics_host")]


def test_public_metrics_need_a_token_or_an_insecure_topology(tmp_path: Path) -> None:
    public = {"metrics_host": "0.0.0.0"}
    for settings in (public, {"metricsPromExporterHost": "10.0.0.1"}):
        ((path, text),) = exposed(topology({"name": "b", "settings": settings}))
        assert path == ("brokers", 0, "settings", "metrics_host")
        assert "metrics_token_file" in text
    with_token = {**public, "metrics_token_file": "/run/token"}
    assert exposed(topology({"name": "b", "settings": with_token})) == []
    broker = {"name": "b", "listen_port": 10911, "advertised_host": "broker.example", "settings": public}
    insecure = topology(broker, insecure=True)
    assert exposed(insecure) == []
    assert addresses(insecure, tmp_path)["b-0"] == "broker.example:11911"


def test_file_has_the_processes_until_they_are_stopped(tmp_path: Path) -> None:
    path = tmp_path / "home" / FILE_NAME
    remove_target(tmp_path / "home", "b-0")
    assert not path.exists()
    write_targets(tmp_path / "home", specs(topology(), tmp_path))
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:10876"], "labels": {"raymq_actor": "nameserver-0"}},
        {"targets": ["127.0.0.1:11911"], "labels": {"raymq_actor": "b-0"}},
    ]
    remove_target(tmp_path / "home", "b-0")
    assert [each["labels"]["raymq_actor"] for each in json.loads(path.read_text())] == ["nameserver-0"]
    write_targets(tmp_path / "home", [])
    assert json.loads(path.read_text()) == []


@pytest.mark.parametrize("content", [b"[{", b"\xff", b"3", b"[3]", b'[{"labels": []}]', b'[{"targets": []}]'])
def test_damaged_file_is_named_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(LaunchFailed, match=f"b-0 was stopped, but .*{FILE_NAME}.* damaged .*`raymq up`"):
        remove_target(tmp_path, "b-0")
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_printed_configuration_names_the_file_and_rays_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", "/rays")
    result = CliRunner().invoke(build(["metrics"]), ["metrics", "config"])
    assert result.exit_code == 0, result.output
    printed = yaml.safe_load(result.output)
    files = {job["job_name"]: job["file_sd_configs"][0]["files"] for job in printed["scrape_configs"]}
    assert files == {
        "raymq": [str(tmp_path / FILE_NAME)],
        "ray": ["/rays/ray/prom_metrics_service_discovery.json"],
    }
    assert Path(printed["rule_files"][0]).exists()

"""The Ray head with an autoscaler on one machine: its configuration, and its nodes' commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.nodes.local_ray import LocalRay, NodeKind
from cluster.control.session.ray_head import read_record


def test_autoscaling_configuration_has_the_node_types(tmp_path: Path) -> None:
    ray = LocalRay(tmp_path, [NodeKind("broker", {"broker_slot": 1}, 4)], idle_timeout_s=6, boot_delay_s=2)
    config = ray.autoscaling_config("127.0.255.1:6479")
    broker = config["available_node_types"]["broker"]
    assert (broker["resources"]["broker_slot"], broker["max_workers"]) == (1, 4)
    assert config["idle_timeout_minutes"] == 0.1
    assert config["provider"]["boot_delay_s"] == 2
    assert config["provider"]["logs"] == str(tmp_path)


def test_each_local_node_has_an_address_of_its_own() -> None:
    pytest.importorskip("ray")
    from benchmarks.experiments.nodes.local_provider import ip_of, node_start_command

    assert len({ip_of(f"node-{number}") for number in range(1, 1001)}) == 1000
    command = node_start_command("127.0.255.1:6479", "node-3", {"CPU": 0, "broker_slot": 1, "memory": 5})
    assert {"--node-ip-address=127.0.1.3", "--num-cpus=0", '--resources={"broker_slot": 1}'} <= set(command)


def test_stop_without_a_recorded_head_ends_nothing(tmp_path: Path) -> None:
    assert LocalRay(tmp_path, []).stop() == 0
    assert read_record(tmp_path) is None

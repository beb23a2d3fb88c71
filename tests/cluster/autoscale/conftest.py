"""Fixtures of the tests with elastic brokers: a Ray head with an autoscaler, whose nodes are raylets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from benchmarks.experiments.nodes.local_ray import LocalRay, NodeKind
from cluster.control.session.ray_head import MARK_ENV, read_record
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import load_topology
from tests.cluster.conftest import RayMQ

MAX_BROKERS = 3


@dataclass(frozen=True)
class ElasticCluster:
    """A Ray head with an autoscaler, and a topology with elastic brokers."""

    ray: LocalRay
    file: Path

    @property
    def topology(self) -> Topology:
        return load_topology(self.file)

    def raylets(self) -> list[psutil.Process]:
        """Return the raylets of the head and of all nodes."""
        record = read_record(self.ray.home)
        return [] if record is None else raylets(record.mark)


def elastic_brokers(**keys: Any) -> dict[str, Any]:
    """Return an elastic entry of `brokers`."""
    return {
        "pattern": "broker-{n}", "min": 1, "max": MAX_BROKERS, "resource": "broker_slot",
        "listen_host": "node", "listen_port": 0, **keys,
    }  # fmt: skip


def raylets(mark: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["environ", "name"])
        if process.info["name"] == "raylet" and (process.info["environ"] or {}).get(MARK_ENV) == mark
    ]


def write_topology(file: Path, **keys: Any) -> None:
    content = {
        "cluster": "Elastic",
        "namespace": "elastic",
        # the addresses of all nodes are loopback addresses of this machine
        "insecure": True,
        "nameservers": [{"listen_port": 0}],
        "rebalancers": [{"listen_port": 0, "settings": {"min_lease_ms": 200}}],
        "brokers": elastic_brokers(),
        "broker_settings": {
            "store": {"commit_log_file_bytes": 16 * 1024 * 1024}, "register_interval_ms": 1000,
        },
        "elastic_topics": "*",
        **keys,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))


@pytest.fixture
def elastic(raymq: RayMQ, tmp_path: Path) -> Iterator[ElasticCluster]:
    """Start a Ray head with an autoscaler. All of its processes are ended after the test.

    The fixture `raymq` sets the token, which Ray reads only once in a process; its Ray is not used.
    """
    home = tmp_path / "home"
    home.mkdir()
    ray = LocalRay(home, [NodeKind("broker", {"broker_slot": 1}, MAX_BROKERS)], has_dashboard=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMQ_HOME", str(home))
        write_topology(tmp_path / "elastic.yaml")
        was_connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
        if was_connected:
            sys.modules["ray"].shutdown()
        ray.start()
        try:
            yield ElasticCluster(replace(ray, home=Path(os.environ["RAYMQ_HOME"])), tmp_path / "elastic.yaml")
        finally:
            if "ray" in sys.modules:
                sys.modules["ray"].shutdown()
            ray.stop()

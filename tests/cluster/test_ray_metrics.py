"""Figures of the actors are in Ray's metrics; Prometheus finds both with the printed configuration."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import ray
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.control.scrape_targets import FILE_NAME
from tests.actors.broker.features.metrics.prometheus import running_prometheus
from tests.cluster.conftest import REPO, RayMQ
from tests.cluster.ray_helpers import append, ensure_up
from tests.eventually import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


def test_rays_metrics_have_gauges_of_each_actor(raymq: RayMQ) -> None:
    ensure_up(raymq)
    assert append("broker-a", b"1", b"2")["code"] == 0
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def gauge(name: str) -> dict[str, float]:
        with urllib.request.urlopen(url, timeout=30) as response:
            page = response.read().decode()
        families = {each.name: each for each in text_string_to_metric_families(page)}
        family = families.get(f"ray_raymq_{name}")
        return {each.labels["actor"]: each.value for each in family.samples} if family is not None else {}

    eventually(lambda: gauge("messages_in").get("broker-a-0", 0) >= 2)
    eventually(lambda: {"nameserver-0", "rebalancer-0"} <= gauge("background_task_failures").keys())
    eventually(lambda: gauge("disk_ratio").keys() == {"broker-a-0", "broker-b-0"})


def test_prometheus_finds_the_cluster_and_ray_with_the_printed_configuration(
    raymq: RayMQ, tmp_path: Path
) -> None:
    ensure_up(raymq)
    sets = [part for override in raymq.overrides for part in ("--set", override)]
    printed = subprocess.run(
        [sys.executable, "-m", "cluster.cli.main", "metrics", "config", *sets],
        env=raymq.environment, cwd=REPO, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    targets = json.loads((raymq.home / FILE_NAME).read_text())
    with running_prometheus(tmp_path / "prometheus", yaml.safe_load(printed)) as prometheus:
        eventually(lambda: prometheus.number('sum(up{job="raymq"})') == len(targets))
        eventually(lambda: prometheus.number("count(ray_raymq_background_task_failures)"))

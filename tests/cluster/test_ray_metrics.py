"""A few figures of the actors are in Ray's own metrics."""

from __future__ import annotations

import urllib.request

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.conftest import RayMQ
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
    eventually(lambda: gauge("disk_percent").keys() == {"broker-a-0", "broker-b-0"})

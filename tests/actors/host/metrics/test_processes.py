"""Nameserver and rebalancer serve their figures, and describe themselves by them as before."""

from __future__ import annotations

from pathlib import Path

import uvloop

from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import RebalancerService, build_rebalancer
from store.common.clock import SystemClock
from tests.actors.host.metrics.scrapes import sent


def page_of(service: NameserverService | RebalancerService) -> tuple[dict[str, object], str]:
    async def scenario() -> tuple[dict[str, object], str]:
        await service.start()
        try:
            described = service.describe()
            page = await sent(service.metrics.port, b"GET /metrics HTTP/1.1\r\n\r\n")
            return described, page.decode()
        finally:
            await service.stop()

    return uvloop.run(scenario())


def test_nameserver_has_figures() -> None:
    settings = NameserverSettings.model_validate({"listen_port": 0, "metrics_port": 0})
    described, page = page_of(build_nameserver(settings, SystemClock()))
    assert set(described) == {"address", "topics", "background_task_failures"}
    assert (described["topics"], described["background_task_failures"]) == (0, 0)
    labels = f'cluster="DefaultCluster",node_type="nameserver",node_id="{described["address"]}"'
    for name in ("raymq_nameserver_topics", "raymq_nameserver_brokers", "raymq_connections"):
        assert f"{name}{{{labels}}} 0\n" in page


def test_rebalancer_has_figures(tmp_path: Path) -> None:
    settings = RebalancerSettings.model_validate({"data_dir": tmp_path, "metrics_port": 0})
    described, page = page_of(build_rebalancer(settings, SystemClock()))
    assert set(described) == {"address", "background_task_failures"}
    labels = f'node_type="rebalancer",node_id="{described["address"]}"'
    for name in ("groups", "members", "group_changes_total"):
        assert f"raymq_rebalancer_{name}{{{labels}}} 0\n" in page
    assert f"raymq_background_task_failures_total{{{labels}}} 0\n" in page

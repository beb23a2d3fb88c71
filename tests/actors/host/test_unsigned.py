"""What a caller without a signature learns from the ports of a cluster with access control."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from actors.nameserver.access import PUBLIC
from actors.transport.client import RemotingClient
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, run
from tests.actors.host.metrics.scrapes import sent
from tests.actors.host.test_cluster_access import protected_cluster

EXT = {
    "topic": "T", "namespace": "n", "key": "k", "cluster": "DefaultCluster", "group": "G", "queueId": "0",
    "consumerGroup": "G", "offset": "-1", "brokerName": "broker-a", "commitOffset": "0", "username": "root",
}  # fmt: skip
REVEALED = {
    "GET_BROKER_CLUSTER_INFO": {"brokerAddrTable", "clusterAddrTable"},
    "GET_ALL_TOPIC_LIST_FROM_NAMESERVER": {"topicList"},
    "GET_TOPICS_BY_CLUSTER": {"topicList"},
    "GET_SYSTEM_TOPIC_LIST_FROM_NS": {"topicList", "brokerAddr"},
}
"""Fields of the bodies of public requests; those of routes and of the kv config are RocketMQ's too."""


@pytest.fixture
def machine(tmp_path: Path) -> list[str]:
    """Return texts that a stranger must not learn: paths of the machine, and names of files."""
    return [str(tmp_path), str(Path.home()), "inner.key", "/tmp", "raymqAccess"]


def test_each_request_without_a_signature_reveals_nothing_but_routes_and_kv_config(
    tmp_path: Path, machine: list[str]
) -> None:
    async def story() -> None:
        stranger = RemotingClient(SystemClock())
        async with protected_cluster(tmp_path) as processes:
            for process in processes:
                for code in itertools.chain(RequestCode, RayMQRequestCode):
                    command = RemotingCommand(code, dict(EXT))
                    response = await stranger.invoke(process.address, command, TIMEOUT_MS)
                    shown = f"{response.remark} {response.ext} {bytes(response.body).decode()}"
                    assert not any(text in shown for text in machine), (process, code, shown)
                    if process is processes[0] and code in PUBLIC:
                        fields = REVEALED.get(RequestCode(code).name, set())
                        assert all(f'"{name}"' in shown for name in fields), (code, shown)
                        continue
                    assert response.code != 0, (process, code, shown)
                    assert not response.body, (process, code, shown)
        await stranger.close()

    run(story)


def test_page_of_metrics_has_no_path_of_the_machine(tmp_path: Path, machine: list[str]) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as processes:
            nameserver, rebalancer, broker = processes
            for endpoint in (nameserver.metrics, rebalancer.metrics, broker.graph.metrics):
                page = (await sent(endpoint.port, b"GET /metrics HTTP/1.1\r\n\r\n")).decode()
                assert "raymq_" in page
                assert not any(text in page for text in machine), page

    run(story)

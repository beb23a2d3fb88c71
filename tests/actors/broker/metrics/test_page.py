"""The page of metrics of a broker: RocketMQ's names, labels and types; start and stop of the endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.host.metrics.scrapes import sent

OF_GROUP = {"topic", "consumer_group", "is_retry", "is_system"}
ROCKETMQ = {
    "rocketmq_topic_number": ("gauge", set[str]()),
    "rocketmq_consumer_group_number": ("gauge", set[str]()),
    "rocketmq_messages_out": ("counter", OF_GROUP),
    "rocketmq_throughput_out": ("counter", OF_GROUP),
    "rocketmq_consumer_lag_messages": ("gauge", OF_GROUP),
    "rocketmq_consumer_ready_messages": ("gauge", OF_GROUP),
    "rocketmq_consumer_inflight_messages": ("gauge", OF_GROUP),
}
"""Type and labels of the families on the page of a RocketMQ 5.5.0 broker that this broker has too."""
OF_ALL = {"cluster", "node_type", "node_id"}


async def scrape(port: int) -> dict[str, Metric]:
    response = await sent(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return {each.name: each for each in text_string_to_metric_families(body.decode())}


def test_rocketmqs_metrics_have_its_types_and_labels(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.commit("CG", "T", 0)
        await peer.pull("T")
        families = await scrape(peer.broker.graph.metrics.port)
        found = {
            name: (family.type, set(family.samples[0].labels) - OF_ALL)
            for name, family in families.items()
            if name.startswith("rocketmq_")
        }
        assert found == ROCKETMQ
        assert all(name.startswith(("rocketmq_", "raymq_")) for name in families)
        sample = families["raymq_messages_in"].samples[0]
        assert sample.labels == {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
        assert sample.value == 1

    with_broker(story, settings_of(tmp_path, metrics_port=0))


def test_texts_are_not_metrics_and_counters_end_with_total(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for each in peer.broker.graph.figures:
            if each.metric:
                assert each.kind != "text"
                assert each.help
                assert each.metric.endswith("_total") == (each.kind == "counter")

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("port", [-1, 0])
def test_endpoint_stops_with_the_broker(tmp_path: Path, port: int) -> None:
    ports: list[int] = []

    async def story(peer: Peer) -> None:
        ports.append(peer.broker.graph.metrics.port)
        assert (ports[0] > 0) == (port == 0)

    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", max(ports[0], 1))

    with_broker(story, settings_of(tmp_path, metrics_port=port))
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        asyncio.run(connect())

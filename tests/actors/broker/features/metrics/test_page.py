"""The page of metrics of a broker against that of RocketMQ: names, labels, types; start and stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.host.figures import Figure
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.metrics.scraped import scrape

ROCKETMQ = Path(__file__).parents[4] / "fixtures" / "rocketmq-5.5.0-metrics.txt"
"""The page of a RocketMQ broker, with one sample for each combination of label names."""
OF_ALL = {"cluster", "node_type", "node_id"}
NOT_OFFERED = {
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "of RocketMQ's POP buffer, which this broker lacks",
    "rocketmq_pop_checkpoint_buffer_size": "of RocketMQ's POP buffer",
    "rocketmq_pop_offset_buffer_size": "of RocketMQ's POP buffer",
    "target": "of OpenTelemetry's exporter, without information",
}
"""RocketMQ's families that this broker does not have, and why."""
RARE = {
    "rocketmq_send_to_dlq_messages": ("counter", {"topic", "consumer_group", "is_system"}),
    "rocketmq_half_messages": ("gauge", {"topic"}),
    "rocketmq_commit_messages": ("counter", {"topic"}),
    "rocketmq_rollback_messages": ("counter", {"topic"}),
    "rocketmq_finish_message_latency_milliseconds": ("histogram", {"topic"}),
}
"""RocketMQ's families (BrokerMetricsConstant) without a sample on that page, which this broker has."""
UNTYPED = {"rocketmq_consumer_group_create_execution_time_milliseconds": "histogram"}


def of_rocketmq() -> dict[str, tuple[str, set[str]]]:
    """Return type and label names of each family on RocketMQ's page."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(ROCKETMQ.read_text()):
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name.removesuffix("_info")] = (family.type, labels - OF_ALL - {"le", "otel_scope_name"})
    return found


def declared(figures: tuple[Figure, ...]) -> dict[str, tuple[str, set[str]]]:
    return {
        each.metric.removesuffix("_total"): (str(each.kind), set(each.labels))
        for each in figures
        if each.metric
    }


def test_broker_has_rocketmqs_families_with_its_labels_and_types(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        ours = {
            name: family
            for name, family in declared(tuple(peer.figures)).items()
            if name.startswith("rocketmq_")
        }
        expected = of_rocketmq()
        assert NOT_OFFERED.keys() <= expected.keys()
        assert ours == {
            **{name: family for name, family in expected.items() if name not in NOT_OFFERED},
            **RARE,
        }

    with_broker(story, settings_of(tmp_path))


def test_page_has_the_declared_types_and_labels(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.heartbeat("client", "CG", T="*")
        await peer.commit("CG", "T", 0)
        await peer.pull("T")
        families = await scrape(peer.metrics.port)
        ours = declared(tuple(peer.figures))
        with_samples = 0
        for name, family in families.items():
            if not family.samples or not name.startswith("rocketmq_"):
                continue
            with_samples += 1
            labels = {label for sample in family.samples for label in sample.labels} - OF_ALL - {"le"}
            assert (family.type, labels) == ours[name]
        assert with_samples > 25
        assert all(name.startswith(("rocketmq_", "raymq_")) for name in families)
        sample = families["raymq_messages_in"].samples[0]
        assert sample.labels == {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
        assert sample.value == 1

    with_broker(story, settings_of(tmp_path, metrics_port=0))


def test_texts_are_not_metrics_and_counters_end_with_total(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for each in peer.figures:
            if each.metric:
                assert each.kind != "text"
                assert each.help
                assert each.metric.endswith("_total") == (each.kind == "counter")

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("port", [-1, 0])
def test_endpoint_stops_with_the_broker(tmp_path: Path, port: int) -> None:
    ports: list[int] = []

    async def story(peer: Peer) -> None:
        ports.append(peer.metrics.port)
        assert (ports[0] > 0) == (port == 0)

    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", max(ports[0], 1))

    with_broker(story, settings_of(tmp_path, metrics_port=port))
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        asyncio.run(connect())

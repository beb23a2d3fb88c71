"""Addresses: a wrong one is refused by name wherever it is given, and IPv6 addresses work everywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from actors.broker.broker_settings import BrokerSettings
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.transport.client import RemotingClient
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import ConnectFailed
from cluster.cli.main import build
from cluster.client import Admin, Message, Producer, PullConsumer, PushConsumer, aio
from cluster.client.errors import ConfigInvalid
from cluster.control.topology.topology import Topology
from jobs.job_errors import FetchFailed
from jobs.reading.connection import ReaderConnection
from store.common.clock import SystemClock
from store.message.hosts import check_host, join_address, split_address
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_producer import read_all
from tests.cluster.client.test_pull_consumer import poll_messages

WRONG_HOSTS = [
    "", "broker..example", ".example", "a b", "a\tb", "a/b", "http://a", "user@a", "x" * 64, "x." * 150 + "x",
    "-a", "a-", "caf\u00e9", "\u2603.net", "1.2.3", "256.1.1.1", "1.2.3.4.5", "::g", "[::1]", "1::2::3",
    "a\x00b", "%", "a,b",
]  # fmt: skip
REASON = "is not a|does not have the form"
WRONG_PORTS = ["", "0", "65536", "99999999", "-1", "+1", "1_0", "\u0663", " 1", "1 ", "1.5", "x"]
WRONG = [f"{host}:9876" for host in WRONG_HOSTS if host not in ("", "[::1]")] + [
    f"a:{port}" for port in WRONG_PORTS
]
WRONG += ["a", ":9876", "::1:9876", "[::1]", "[a]:9876", "[]:9876"]


@pytest.mark.parametrize("address", [each for each in WRONG if each.strip() == each and "," not in each])
def test_wrong_address_is_refused_by_name_everywhere(address: str, tmp_path: Path) -> None:
    shown = repr(address)[1:20]
    makes: list[Callable[[], Any]] = [
        lambda: Producer(address),
        lambda: PullConsumer([address], "g"),
        lambda: PushConsumer(f"127.0.0.1:9876;{address}", "g", print),
        lambda: Admin(lambda: [address]),
        lambda: aio.Producer(address),
    ]
    for make in makes:
        with pytest.raises(ConfigInvalid, match=REASON) as raised:
            make()
        assert shown in str(raised.value)
    with pytest.raises(FetchFailed, match=REASON):
        ReaderConnection(address)
    for settings, more in ((BrokerSettings, {}), (RebalancerSettings, {"data_dir": tmp_path})):
        if address == "a:0":
            continue  # the settings of a cluster whose ports are not chosen yet
        with pytest.raises(ValidationError, match=REASON):
            settings(nameservers=[address], **more)
    arguments = ["topic", "list", "-n", address]
    result = CliRunner().invoke(build(arguments), arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr


@pytest.mark.parametrize("host", WRONG_HOSTS)
def test_wrong_host_is_refused_by_settings_and_topology(host: str, tmp_path: Path) -> None:
    for settings, more in (
        (BrokerSettings, {}),
        (NameserverSettings, {}),
        (RebalancerSettings, {"data_dir": tmp_path}),
    ):
        with pytest.raises(ValidationError, match=REASON):
            settings(listen_host=host, **more)
    with pytest.raises(ValidationError, match=REASON):
        BrokerSettings(advertised_host=host)
    for keys in ({"listen_host": host}, {"nameservers": [{"listen_host": host}]}):
        with pytest.raises(ValidationError, match=REASON):
            Topology.model_validate({"brokers": [{"name": "b"}], **keys})


@pytest.mark.parametrize("address", WRONG)
def test_wrong_address_of_a_route_fails_its_request_only(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        client = RemotingClient(SystemClock())
        with pytest.raises(ConnectFailed):
            await client.invoke(address, RemotingCommand(105), 1000)
        client.oneway(address, RemotingCommand(105))
        await client.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("a:1", ("a", 1)),
        ("broker-a_0.example.:65535", ("broker-a_0.example.", 65535)),
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("[::1]:9876", ("::1", 9876)),
        ("[fe80::1%eth0]:9876", ("fe80::1%eth0", 9876)),
        ("xn--caf-dma.example:80", ("xn--caf-dma.example", 80)),
        ("3com.example:80", ("3com.example", 80)),
    ],
)
def test_valid_addresses_are_split_and_joined(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address
    assert check_host(parts[0]) == parts[0]


def test_cluster_on_ipv6_sends_reads_and_queries(clusters: Callable[..., Cluster], group: str) -> None:
    cluster = clusters(brokers=1, host="::1")
    assert cluster.address.startswith("[::1]:")
    topic = cluster.topic(queues=2)
    with Producer(cluster.address) as producer:
        result = producer.send(topic, b"one", keys="k")
        producer.send_batch([Message(topic, b"two"), Message(topic, b"three")])
        producer.send_many(topic, [b"four"])
    with Admin(cluster.address) as admin:
        by_id = admin.message_by_id(result.offset_msg_id)
        [by_key] = admin.messages_by_key(topic, "k")
    assert by_id.body == by_key.body == b"one"
    assert (by_id.store_host.ip, by_id.born_host.ip, len(result.offset_msg_id)) == ("::1", "::1", 56)
    assert sorted(body for _, body, _ in read_all(cluster, topic)) == [b"four", b"one", b"three", b"two"]
    with PullConsumer(cluster.address, group) as consumer:
        consumer.subscribe(topic)
        assert len(poll_messages(consumer, 4)) == 4
    connection = ReaderConnection(cluster.brokers["a"].address)
    connection.close()

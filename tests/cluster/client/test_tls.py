"""Python clients against brokers and nameservers that accept only TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from cluster.client import (
    Admin,
    ClientConfig,
    ConsumerConfig,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TlsConfig,
    aio,
)
from cluster.client.errors import ClientError, ConfigInvalid, NameserverUnreachable
from store.message.message import MessageExt
from tests.certificates import Authority
from tests.eventually import LIMIT_S, eventually

from .conftest import Cluster

TIMEOUT_MS = int(LIMIT_S * 1000)
LARGE = bytes(range(256)) * 8_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def encrypted(
    clusters: Callable[..., Cluster], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """Start a cluster that accepts only TLS. The environment names its CA."""
    certificate, key = authority.issue()
    monkeypatch.setenv("RAYMQ_TLS_CA", str(authority.ca_file))
    tls = {"tls": "enforced", "tls_certificate": certificate, "tls_key": key, "tls_ca": authority.ca_file}
    return clusters(brokers=1, tls=tls)


def test_all_clients_send_and_consume_by_tls(
    encrypted: Cluster, authority: Authority, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = encrypted.topic(queues=1)
    monkeypatch.delenv("RAYMQ_TLS_CA")
    tls = TlsConfig(ca_file=authority.ca_file)
    config = ProducerConfig(
        encrypted.addresses, send_timeout_ms=TIMEOUT_MS, compress_over_bytes=len(LARGE) + 1, tls=tls
    )
    with Producer(config=config) as producer:
        producer.send(topic, b"first")
        producer.send(topic, LARGE)  # in the caller's thread, because the route is cached
        producer.send_batch([Message(topic, b"batch")])
        producer.send_table(topic, pa.table({"body": [b"table"]}))

    async def send_async() -> None:
        async with aio.Producer(config=config) as face:
            await face.send(topic, b"async")

    asyncio.run(send_async())
    bodies = [b"first", LARGE, b"batch", b"table", b"async"]
    received: list[bytes] = []

    def listen(messages: list[MessageExt]) -> None:
        received.extend(message.body for message in messages)

    pushing = PushConfig(encrypted.addresses, group=group, tls=tls)
    with PushConsumer(listener=listen, config=pushing) as push:
        push.subscribe(topic)
        eventually(lambda: sorted(received) == sorted(bodies))
    pull = ConsumerConfig(encrypted.addresses, group=f"{group}-pull", tls=tls)
    with PullConsumer(config=pull) as consumer:
        consumer.subscribe(topic)
        polled: list[bytes] = []
        eventually(lambda: polled.extend(m.body for m in consumer.poll()) or len(polled) == len(bodies))


def test_client_without_tls_is_refused(encrypted: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYMQ_TLS_CA")
    with pytest.raises(ClientError), Admin(encrypted.addresses) as admin:
        admin.brokers()


def test_client_verifies_its_peers_unless_verify_is_false(
    encrypted: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "other")
    trusting = ClientConfig(encrypted.addresses, tls=TlsConfig(ca_file=other.ca_file))
    with (
        Admin(config=trusting) as admin,
        pytest.raises(NameserverUnreachable, match="certificate is not valid"),
    ):
        admin.brokers()
    unverified = ClientConfig(encrypted.addresses, tls=TlsConfig(verify=False))
    with Admin(config=unverified) as admin:
        assert list(admin.brokers()) == ["a"]
    monkeypatch.delenv("RAYMQ_TLS_CA")
    monkeypatch.setenv("RAYMQ_TLS_VERIFY", "false")
    with Admin(encrypted.addresses) as admin:
        assert list(admin.brokers()) == ["a"]


def test_client_presents_its_certificate(
    clusters: Callable[..., Cluster], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.issue()
    own, own_key = authority.issue("client", ["client.example"])
    ca = authority.ca_file
    monkeypatch.setenv("RAYMQ_TLS_CA", str(ca))
    monkeypatch.setenv("RAYMQ_TLS_CERTIFICATE", str(own))
    monkeypatch.setenv("RAYMQ_TLS_KEY", str(own_key))
    tls = {"tls": "enforced", "tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
    made = clusters(brokers=1, tls={**tls, "tls_client_ca": ca})
    topic = made.topic(queues=1)
    with Producer(made.address) as producer:
        assert [producer.send(topic, b"%d" % n).queue_offset for n in range(2)] == [0, 1]
    without = ClientConfig(made.addresses, tls=TlsConfig(ca_file=ca))
    with Admin(config=without) as admin, pytest.raises(ClientError):
        admin.brokers()


def test_blocking_send_times_out_and_recovers_by_tls(encrypted: Cluster) -> None:
    topic = encrypted.topic(queues=1)
    config = ProducerConfig(encrypted.addresses, send_timeout_ms=TIMEOUT_MS)
    with Producer(config=config) as producer:
        producer.send(topic, b"first")
        producer.send(topic, b"second")
        encrypted.stop_broker("a")
        encrypted.start_broker("a")
        encrypted.await_registration()
        assert producer.send(topic, b"third").queue_offset == 2


def test_invalid_tls_settings_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigInvalid, match="give both or neither"):
        TlsConfig(certificate="client.crt")
    with pytest.raises(ConfigInvalid, match="give a TlsConfig"):
        ClientConfig(tls=True)  # type: ignore[arg-type]
    config = ClientConfig("127.0.0.1:1", tls=TlsConfig(ca_file=tmp_path / "missing.pem"))
    with pytest.raises(ConfigInvalid, match=r"missing\.pem: No such file"), Admin(config=config) as admin:
        admin.brokers()
    monkeypatch.setenv("RAYMQ_TLS_CA", str(tmp_path / "absent.pem"))
    with pytest.raises(ConfigInvalid, match=r"absent\.pem: No such file"), Admin("127.0.0.1:1") as admin:
        admin.brokers()

"""RocketMQ's own TLS client against a RayMQ cluster that accepts only TLS, or both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.compat.agent import Agent, OperationFailed
from tests.compat.build import CLIENT, CLIENT_5_5, JavaKit
from tests.compat.mqadmin import Mqadmin
from tests.compat.raymq import RayMQ

pytestmark = pytest.mark.java

LARGE = "x" * 200_000
TLS = "-Dtls.enable=true"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def options(authority: Authority, mode: str) -> list[str]:
    """Return the options of a standalone cluster with TLS."""
    certificate, key = authority.issue()
    settings = {
        "tls": mode,
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_ca": authority.ca_file,
    }
    return [part for name, value in settings.items() for part in ("--tls", f"{name}={value}")]


@pytest.fixture(scope="module")
def enforced(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RayMQ]:
    """Run a cluster that accepts only TLS."""
    with RayMQ(tmp_path_factory.mktemp("enforced"), options=options(authority, "enforced")) as started:
        yield started


@pytest.fixture
def agent(kit: JavaKit, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Return a function that starts a Java client with JVM options."""
    running: list[Agent] = []

    def start(cluster: RayMQ, *jvm: str, profile: str = CLIENT) -> Agent:
        home = tmp_path / f"agent-{len(running)}"
        running.append(Agent(kit, profile, cluster.nameserver_address, home, jvm=jvm))
        return running[-1]

    yield start
    for each in running:
        each.kill()


def send_and_consume(client: Agent, broker: str, topic: str) -> None:
    """Send small and large messages and consume them."""
    client.create_topic(broker, topic, queues=1)
    client.publish_queues(topic)
    bodies = [LARGE, *(f"body-{number}" for number in range(20))]
    client.send_dispatched([{"topic": topic, "body": body} for body in bodies])
    client.call("push_start", name="p", group=f"{topic}-group", topic=topic)
    received = client.received("p", len(bodies))
    expected = {hashlib.sha1(body.encode()).hexdigest() for body in bodies}
    assert {message["bodySha1"] for message in received} == expected


@pytest.mark.parametrize("profile", [CLIENT, pytest.param(CLIENT_5_5, marks=pytest.mark.extended)])
def test_java_client_sends_and_consumes_by_tls(
    enforced: RayMQ, agent: Callable[..., Agent], profile: str
) -> None:
    """In its test mode, which is the default, the client trusts every certificate."""
    client = agent(enforced, TLS, profile=profile)
    send_and_consume(client, enforced.broker_address, f"TlsTopic-{profile.replace('.', '_')}")


@pytest.mark.extended
def test_java_client_verifies_the_certificate_of_the_broker(
    enforced: RayMQ, authority: Authority, agent: Callable[..., Agent], tmp_path: Path
) -> None:
    strict = (TLS, "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true")
    trusting = agent(enforced, *strict, f"-Dtls.client.trustCertPath={authority.ca_file}")
    send_and_consume(trusting, enforced.broker_address, "VerifiedTopic")
    other = Authority(tmp_path / "other")
    wary = agent(enforced, *strict, f"-Dtls.client.trustCertPath={other.ca_file}")
    with pytest.raises(OperationFailed):
        wary.create_topic(enforced.broker_address, "RefusedTopic")


def test_java_client_without_tls_is_refused_by_enforced_brokers(
    enforced: RayMQ, agent: Callable[..., Agent]
) -> None:
    with pytest.raises(OperationFailed):
        agent(enforced).create_topic(enforced.broker_address, "PlainTopic")
    assert "tls: enforced" in (enforced.root / "raymq.log").read_text()


@pytest.mark.extended
def test_permissive_cluster_serves_java_clients_with_and_without_tls(
    kit: JavaKit, authority: Authority, agent: Callable[..., Agent], tmp_path: Path
) -> None:
    with RayMQ(tmp_path / "permissive", options=options(authority, "permissive")) as cluster:
        send_and_consume(agent(cluster), cluster.broker_address, "PlainTopic")
        send_and_consume(agent(cluster, TLS), cluster.broker_address, "EncryptedTopic")
        home = tmp_path / "mqadmin"
        with Mqadmin(kit, cluster.nameserver_address, home, jvm=(TLS,)) as admin:
            (printed,) = admin.run("clusterList")
            assert "broker-a" in printed

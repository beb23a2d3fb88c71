"""RocketMQ's Java clients with two RayMQ nameservers, one of which may be down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.client.conftest import Cluster
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit

pytestmark = pytest.mark.java

SEND_OK = "SEND_OK"


def test_java_clients_keep_working_while_one_nameserver_is_down(kit: JavaKit, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", nameservers=2)
    bodies: list[str] = []
    try:
        topic = cluster.topic()
        with Agent(kit, CLIENT, cluster.address, tmp_path / "agent") as client:

            def send(to: str) -> None:
                body = f"{to} {len(bodies)}"
                [result] = client.send([{"topic": to, "body": body}])
                assert result.get("status") == SEND_OK, result
                bodies.append(body)

            client.call("push_start", name="seen", group="G_two", topic=topic)
            send(topic)
            for address in cluster.addresses:
                cluster.stop_nameserver(address)
                send(topic)
                fresh = cluster.topic()
                client.publish_queues(fresh)  # queried from the remaining nameserver
                send(fresh)
                bodies.pop()
                cluster.start_nameserver(address)
                cluster.await_registration()
            received = client.received("seen", len(bodies))
            assert sorted(message["body"] for message in received) == sorted(bodies)
    finally:
        cluster.stop()

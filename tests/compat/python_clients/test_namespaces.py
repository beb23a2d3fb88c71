"""Namespaces of Python and Java clients mean the same topics and groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.client import Admin, MessageExt, Producer, ProducerConfig, PushConfig, PushConsumer
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.extended]


def test_java_and_python_clients_of_a_namespace_share_its_topics(
    kit: JavaKit, peer: Peer, client: Agent, names: Names, tmp_path: Path
) -> None:
    topic, group = names.topic("_shop"), names.group()
    client.create_topic(peer.broker_address, f"shop%{topic}", queues=1)
    client.publish_queues(f"shop%{topic}")
    got: list[tuple[str, bytes]] = []

    def take(messages: list[MessageExt]) -> None:
        got.extend((each.topic, each.body) for each in messages)

    jvm = ("-Dcompat.namespace=shop",)
    with Agent(kit, CLIENT, peer.nameserver_address, tmp_path, jvm=jvm) as java:
        [sent] = java.send([{"topic": topic, "body": "from java"}])
        assert sent["status"] == "SEND_OK", sent
        producers = ProducerConfig(namespace="shop", group="sellers")
        with Producer(peer.nameserver_address, config=producers) as producer:
            assert producer.send(topic, b"from python").queue.topic == topic == sent["topic"]
        java.call("push_start", name="java", group=f"{group}_java", topic=topic, failures=1)
        received = java.received("java", 4)  # each message once more, from the retry topic
        config = PushConfig(namespace="shop", group=group)
        with PushConsumer(peer.nameserver_address, listener=take, config=config) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: len(got) == 2, "both messages")
        java.call("push_stop", name="java")
    assert sorted(got) == [(topic, b"from java"), (topic, b"from python")]
    assert sorted(each["body"] for each in received) == ["from java"] * 2 + ["from python"] * 2
    assert {each["topic"] for each in received} == {topic}
    with Admin(peer.nameserver_address) as admin:
        for member in (group, f"{group}_java"):
            offsets = admin.committed_offsets(f"shop%{member}", f"shop%{topic}")
            assert sum(offset or 0 for offset in offsets.values()) == 2, member
        assert f"%RETRY%shop%{group}_java" in admin.topics()

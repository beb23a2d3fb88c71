"""Message traces of Python clients in RocketMQ's tools, and those of Java clients in ours."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cluster.client import Admin, Producer, ProducerConfig, PushConfig, PushConsumer
from cluster.client.errors import ClientError
from cluster.client.trace.trace_records import Pub, SubAfter, SubBefore, TraceRecord
from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.mqadmin import Mqadmin
from tests.compat.peers import Peer
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.extended]


def records(peer: Peer, trace_topic: str, msg_id: str) -> list[TraceRecord]:
    with Admin(peer.nameserver_address) as admin, suppress(ClientError):
        return admin.message_trace(msg_id, trace_topic=trace_topic)
    return []


def test_mqadmin_shows_the_trace_of_python_clients(
    peer: Peer, mqadmin: Mqadmin, client: Agent, topic: str, names: Names
) -> None:
    trace_topic, group = names.topic("_traces"), names.group()
    client.create_topic(peer.broker_address, trace_topic, queues=1)
    client.publish_queues(trace_topic)
    with Producer(
        peer.nameserver_address, "shop", config=ProducerConfig(trace=True, trace_topic=trace_topic)
    ) as producer:
        sent = producer.send(topic, b"4 apples", tags="fruit", keys="order-1")
    config = PushConfig(trace=True, trace_topic=trace_topic)
    with PushConsumer(peer.nameserver_address, group, lambda _: None, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(records(peer, trace_topic, sent.msg_id)) == 3)
    [printed] = mqadmin.run(f"queryMsgTraceById -i {sent.msg_id} -t {trace_topic}")
    pub, sub = [line.split() for line in printed.splitlines() if line.startswith(("Pub", "Sub"))]
    assert (pub[0], pub[1], pub[-1]) == ("Pub", "shop", "success"), printed
    assert (sub[0], sub[1], sub[-1]) == ("Sub", group, "success"), printed


def test_trace_of_java_clients_is_shown_by_the_admin(
    peer: Peer, client: Agent, topic: str, names: Names
) -> None:
    trace_topic, group = names.topic("_traces"), names.group()
    client.create_topic(peer.broker_address, trace_topic, queues=1)
    client.publish_queues(trace_topic)
    sent = client.call(
        "traced_send", group="JavaShop", topic=topic, body="4 apples", keys="order-1", traceTopic=trace_topic
    )
    client.call("traced_consume", group=group, topic=topic, traceTopic=trace_topic)
    eventually(lambda: len(records(peer, trace_topic, sent["msgId"])) == 3)
    pub, before, after = records(peer, trace_topic, sent["msgId"])
    client.call("traced_stop", group=group)
    assert isinstance(pub, Pub)
    assert (pub.group, pub.topic, pub.keys) == ("JavaShop", topic, "order-1")
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert (before.group, after.group, after.is_success) == (group, group, True)

"""Request and reply messages between Python and Java clients, with RayMQ and RocketMQ brokers."""

from __future__ import annotations

import pytest

from cluster.client import MessageExt, Producer, PushConsumer
from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

REPLY_MS = int(LIMIT_S * 1000)


def test_python_request_gets_the_reply_of_a_java_consumer(
    peer: Peer, each_client: Agent, topic: str, names: Names
) -> None:
    each_client.call("push_start", name=topic, group=names.group(), topic=topic, replies=True)
    with Producer(peer.nameserver_address, "python-requesters") as producer:
        reply = producer.request(topic, b"again ", timeout_ms=REPLY_MS)
    assert reply.body == b"again again "
    assert reply.properties["MSG_TYPE"] == "reply"
    each_client.call("push_stop", name=topic)


def test_java_request_gets_the_reply_of_a_python_consumer(
    peer: Peer, each_client: Agent, topic: str, names: Names
) -> None:
    with Producer(peer.nameserver_address, "python-repliers") as producer:

        def listen(messages: list[MessageExt]) -> None:
            for each in messages:
                producer.reply(each, each.body.upper(), properties={"shop": "corner"}, timeout_ms=REPLY_MS)

        with PushConsumer(peer.nameserver_address, names.group(), listen) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: len(consumer.assignment()) == 4, "all queues")
            reply = each_client.call("request_by_callback", topic=topic, body="4 apples", timeoutMs=REPLY_MS)
    assert reply["body"] == "4 APPLES"
    assert (reply["properties"]["MSG_TYPE"], reply["properties"]["shop"]) == ("reply", "corner")

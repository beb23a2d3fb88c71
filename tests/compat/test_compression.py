"""Compressed bodies: Java consumers decompress those of Python producers, and vice versa."""

from __future__ import annotations

import hashlib
from typing import Literal

import pytest

from cluster.client import Admin, Producer, ProducerConfig, PullConsumer
from store.message.sys_flag import COMPRESSED
from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S

pytestmark = pytest.mark.java

BODY = b"so long, and thanks " * 800


@pytest.mark.parametrize(
    "compression",
    [
        "zlib",
        pytest.param("lz4", marks=pytest.mark.extended),
        pytest.param("zstd", marks=pytest.mark.extended),
    ],
)
def test_java_consumer_decompresses_bodies_of_the_python_producer(
    client: Agent, peer: Peer, topic: str, names: Names, compression: Literal["zlib", "lz4", "zstd"]
) -> None:
    config = ProducerConfig(compression=compression)
    with Producer(peer.nameserver_address, names.group(), config=config) as producer:
        result = producer.send(topic, BODY, tags="packed", keys="k1")

    client.call("lite_start", name=topic, group=names.group("_reads"), topic=topic, assign=True)
    [message] = client.polled(topic, 1)
    client.call("lite_stop", name=topic)
    assert message["bodySha1"] == hashlib.sha1(BODY).hexdigest()
    assert message["storeSize"] < len(BODY) // 4
    assert (message["tags"], message["keys"], message["msgId"]) == ("packed", "k1", result.msg_id)


def test_python_clients_decompress_bodies_of_java_producers(
    each_client: Agent, peer: Peer, topic: str, names: Names
) -> None:
    [sent] = each_client.send([{"topic": topic, "body": BODY.decode()}])

    with Admin(peer.nameserver_address) as admin:
        stored = admin.message_by_id(sent["offsetMsgId"])
    assert stored.body == BODY
    assert stored.store_size < len(BODY) // 4
    assert stored.sys_flag & COMPRESSED
    if type(peer).__name__ == "RayMQ":  # Python consumers pull with PULL_RECORDS
        with PullConsumer(peer.nameserver_address, names.group()) as consumer:
            consumer.assign(consumer.queues(topic))
            assert [message.body for message in consumer.poll(timeout_ms=int(LIMIT_S * 1000))] == [BODY]

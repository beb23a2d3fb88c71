"""Python clients with RocketMQ and RayMQ brokers; RocketMQ does not support RayMQ's own requests."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from cluster.client import Admin, MessageExt, Producer, PullConsumer, PushConfig, PushConsumer
from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import eventually

pytestmark = pytest.mark.java

COUNT = 200


def send(nameserver: str, topic: str, begin: int = 0) -> set[bytes]:
    bodies = [str(number).encode() for number in range(begin, begin + COUNT)]
    with Producer(nameserver, group="plain") as producer:
        for number, body in enumerate(bodies):
            producer.send(topic, body, tags="ab"[number % 2])
    return set(bodies)


def test_python_group_shares_a_topic_and_commits_offsets(peer: Peer, topic: str, names: Names) -> None:
    nameserver = peer.nameserver_address
    got: Counter[bytes] = Counter()
    lock = threading.Lock()

    def take(messages: list[MessageExt]) -> None:
        with lock:
            got.update(message.body for message in messages)

    def member(name: str) -> PushConsumer:
        config = PushConfig(nameservers=nameserver, group=names.group(), instance_name=name)
        consumer = PushConsumer(None, None, take, config=config)
        consumer.subscribe(topic)
        return consumer

    first = member("first")
    sent = send(nameserver, topic)
    eventually(lambda: got.keys() == sent, "all at one member")
    second = member("second")
    eventually(lambda: [len(each.assignment()) for each in (first, second)] == [2, 2], "halves")
    sent |= send(nameserver, topic, COUNT)
    eventually(lambda: got.keys() == sent, "all at two members")
    second.close()
    first.close()

    with Admin(nameserver) as admin:
        committed = admin.committed_offsets(names.group(), topic)
    assert sum(offset or 0 for offset in committed.values()) == len(sent)
    assert max(got.values()) == 1 or sum(got.values()) < len(sent) * 1.5


def test_pull_consumer_filters_by_tag_and_seeks_by_time(peer: Peer, topic: str, names: Names) -> None:
    nameserver = peer.nameserver_address
    sent = send(nameserver, topic)
    with PullConsumer(nameserver, names.group()) as consumer:
        consumer.subscribe(topic, "a")
        wanted = {body for body in sent if int(body) % 2 == 0}
        got: set[bytes] = set()
        eventually(lambda: bool(got.update(m.body for m in consumer.poll(50, 500))) or got == wanted, "tag a")
        # poll skips the messages of tag b, also those after the last message of tag a.
        eventually(lambda: not consumer.poll(50, 0) and sum(consumer.lag().values()) == 0, "no lag")
        assert len(consumer.assignment()) == 4
        consumer.commit()
        consumer.seek_to_time(0)
        again: list[bytes] = []
        eventually(
            lambda: bool(again.extend(m.body for m in consumer.poll(50, 500))) or len(again) == 100, "x2"
        )
        assert set(again) == wanted


def test_failed_message_is_delivered_again(peer: Peer, topic: str, names: Names, client: Agent) -> None:
    times: list[int] = []

    def fails_once(messages: list[MessageExt]) -> None:
        times.append(messages[0].reconsume_times)
        if len(times) == 1:
            raise ValueError("not yet")

    config = PushConfig(nameservers=peer.nameserver_address, group=names.group())
    with PushConsumer(None, None, fails_once, config=config) as consumer:
        consumer.subscribe(topic)
        client.send([{"topic": topic, "body": "from Java"}])
        eventually(lambda: len(times) >= 2, "the second delivery")

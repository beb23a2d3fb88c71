"""Ordered groups of Java and Python members: the queue locks give each queue one owner at a time."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest

from cluster.client import MessageExt, Producer, PushConfig, PushConsumer
from tests.compat.agent import Agent
from tests.compat.conftest import Agents, Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

QUEUES = 4
BLOCKED = {0, 3}  # one queue of each half
ROUND = 6  # messages per queue


def send_round(nameserver: str, topic: str) -> None:
    with Producer(nameserver, group="mixed") as producer:
        for queue in producer.queues(topic):
            for _ in range(ROUND):
                producer.send(topic, b"x", queue=queue)


def offsets_of(agent: Agent, name: str, topic: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for message in agent.received(name, 0):
        if message["topic"] == topic:
            found[message["queueId"]].append(message["queueOffset"])
    return found


def held_by(agent: Agent, name: str, topic: str) -> set[int]:
    return {queue["queueId"] for queue in agent.call("push_queues", name=name) if queue["topic"] == topic}


def test_ordered_queue_changes_between_python_and_java_owners_in_order(
    agents: Agents, peer: Peer, names: Names
) -> None:
    agent, nameserver, topic = agents.get("5.3.3-json"), peer.nameserver_address, names.topic()
    agent.create_topic(peer.broker_address, topic, QUEUES)
    send_round(nameserver, topic)
    unblock, ours = threading.Event(), defaultdict[int, list[int]](list)

    def listen(messages: list[MessageExt]) -> None:
        queue_id = messages[0].queue_id
        ours[queue_id].extend(message.queue_offset for message in messages)
        assert queue_id not in BLOCKED or unblock.wait(LIMIT_S)

    config = PushConfig(nameservers=nameserver, group=names.group(), ordered=True)
    with PushConsumer(None, None, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: sum(map(len, ours.values())) == len(BLOCKED) + (QUEUES - len(BLOCKED)) * ROUND)
        agent.call("push_start", name="java", group=names.group(), topic=topic, orderly=True)
        eventually(lambda: held_by(agent, "java", topic), "a queue that has no running call")
        assert not held_by(agent, "java", topic) & BLOCKED, (
            "locked until the calls of the Python member return"
        )
        unblock.set()

        def theirs() -> dict[int, list[int]]:
            return offsets_of(agent, "java", topic)

        def count() -> int:
            return sum(map(len, [*ours.values(), *theirs().values()]))

        eventually(lambda: count() == QUEUES * ROUND, "every message")
        shared = theirs()
        assert len(shared) == 1
        assert shared.keys() <= BLOCKED
        for queue_id in range(QUEUES):
            assert ours[queue_id] + shared.get(queue_id, []) == list(range(ROUND))

        agent.call("push_stop", name="java")
        eventually(lambda: len(consumer.assignment()) == QUEUES, "all queues for the Python member")
        send_round(nameserver, topic)
        eventually(lambda: count() == 2 * QUEUES * ROUND, "every message of the second round")
        for queue_id in range(QUEUES):
            assert ours[queue_id] == sorted(ours[queue_id])
            assert ours[queue_id][-ROUND:] == list(range(ROUND, 2 * ROUND))


def test_python_member_takes_over_its_share_from_an_orderly_java_member(
    agents: Agents, peer: Peer, names: Names
) -> None:
    agent, nameserver, topic = agents.get("5.3.3-json"), peer.nameserver_address, names.topic()
    agent.create_topic(peer.broker_address, topic, QUEUES)
    send_round(nameserver, topic)
    agent.call("push_start", name="java2", group=names.group(), topic=topic, orderly=True)
    eventually(lambda: sum(map(len, offsets_of(agent, "java2", topic).values())) == QUEUES * ROUND)
    ours: dict[int, list[int]] = defaultdict(list)

    def listen(messages: list[MessageExt]) -> None:
        ours[messages[0].queue_id].extend(message.queue_offset for message in messages)

    config = PushConfig(nameservers=nameserver, group=names.group(), ordered=True)
    with PushConsumer(None, None, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(consumer.assignment()) == QUEUES // 2, "half of the queues")
        held = {queue.queue_id for queue in consumer.assignment()}
        send_round(nameserver, topic)
        eventually(lambda: sum(map(len, ours.values())) == len(held) * ROUND, "the second round")
    agent.call("push_stop", name="java2")
    assert dict(ours) == {queue_id: list(range(ROUND, 2 * ROUND)) for queue_id in held}

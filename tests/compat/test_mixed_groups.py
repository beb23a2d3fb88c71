"""Java and Python members of one group share the queues of a topic and lose no message.

Members join, leave and are killed while messages are sent. Against RocketMQ's broker the Python members
assign queues to themselves.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.client import Admin, MessageExt, Producer, ProducerConfig, PushConfig, PushConsumer
from tests.background import Background
from tests.compat.agent import Agent
from tests.compat.conftest import Agents, Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

QUEUES = 8
FIRST_NUMBERS = range(100)
SEND_PAUSE_S = 0.005
LIMIT_MS = int(LIMIT_S * 1000)
# A request that times out is retried although it may have been stored; then a number is stored twice.
SENDS = ProducerConfig(request_timeout_ms=LIMIT_MS, send_timeout_ms=LIMIT_MS)


class Sender(Background):
    """Sends numbers one after another in a separate thread until the `with` block ends."""

    def __init__(self, nameserver: str, topic: str, first: int = 0) -> None:
        super().__init__()
        self.sent: list[int] = []
        self._first = first
        self._nameserver = nameserver
        self._topic = topic

    def run(self) -> None:
        with Producer(self._nameserver, group="mixed", config=SENDS) as producer:
            for number in itertools.count(self._first):
                producer.send(self._topic, str(number))
                self.sent.append(number)
                if self.is_over.wait(SEND_PAUSE_S):
                    return


class MixedGroup:
    """The Java and Python members of a group, by name."""

    def __init__(self, nameserver: str, group: str, topic: str) -> None:
        self.java: dict[str, Agent] = {}
        self.python: dict[str, PushConsumer] = {}
        self.got: Counter[int] = Counter()
        self._nameserver = nameserver
        self._group = group
        self._topic = topic

    def join_java(self, name: str, agent: Agent) -> None:
        agent.call("push_start", name=name, group=self._group, topic=self._topic)
        self.java[name] = agent

    def join_python(self, name: str, strategy: str | None = None) -> None:
        config = PushConfig(
            nameservers=self._nameserver, group=self._group, consume_from="earliest", strategy=strategy
        )
        self.python[name] = PushConsumer(None, None, self._take, config=config)
        self.python[name].subscribe(self._topic)

    def leave(self, name: str) -> None:
        if name in self.python:
            self.python.pop(name).close()
        else:
            agent = self.java.pop(name)
            agent.call("push_stop", name=name)
            self._count(name, agent)

    def kill(self, name: str, sent: list[int]) -> None:
        """Kill a Java member that has received messages, and count those that it may have consumed."""
        agent = self.java.pop(name)
        consumed = agent.call("push_freeze", name=name)
        before = len(sent)
        eventually(lambda: len(sent) > before + 2 * QUEUES, "messages for the frozen member")
        agent.kill()
        self.got.update(int(message["body"]) for message in consumed)

    def _count(self, name: str, agent: Agent) -> None:
        self.got.update(int(message["body"]) for message in agent.received(name, 0))

    def committed(self) -> int:
        with Admin(self._nameserver) as admin:
            return sum(offset or 0 for offset in admin.committed_offsets(self._group, self._topic).values())

    def settle(self, *sizes: int) -> None:
        """Wait until each queue is assigned to one member and the shares have these sizes."""

        def are_shared() -> bool:
            shares = self.shares().values()
            taken = sorted(queue for share in shares for queue in share)
            return taken == list(range(QUEUES)) and sorted(map(len, shares)) == sorted(sizes)

        eventually(are_shared, f"the assignment of the queues in shares of {sizes}")

    def shares(self) -> dict[str, set[int]]:
        shares = {
            name: {
                queue["queueId"]
                for queue in agent.call("push_queues", name=name)
                if queue["topic"] == self._topic
            }
            for name, agent in self.java.items()
        }
        for name, consumer in self.python.items():
            held = consumer.assignment()
            shares[name] = {queue.queue_id for queue in held if queue.topic == self._topic}
        return shares

    def _take(self, messages: list[MessageExt]) -> None:
        self.got.update(int(message.body) for message in messages)

    def close(self) -> None:
        for consumer in self.python.values():
            consumer.close()


@pytest.fixture
def mixed(peer: Peer, agents: Agents, names: Names) -> Iterator[MixedGroup]:
    agents.get("5.3.3-json").create_topic(peer.broker_address, names.topic(), QUEUES)
    group = MixedGroup(peer.nameserver_address, names.group(), names.topic())
    yield group
    group.close()


def test_mixed_group_loses_no_message_as_members_join_leave_and_die(
    mixed: MixedGroup, agents: Agents, peer: Peer, names: Names
) -> None:
    victim, other = agents.start("4.9.8-json"), agents.get("5.3.3-json")
    mixed.join_java("victim", victim)
    mixed.settle(8)
    with Producer(peer.nameserver_address, group="mixed", config=SENDS) as producer:
        for number in FIRST_NUMBERS:
            producer.send(names.topic(), str(number))
    eventually(lambda: mixed.committed() == len(FIRST_NUMBERS), "the offsets of the first messages")
    with Sender(peer.nameserver_address, names.topic(), len(FIRST_NUMBERS)) as sender:
        mixed.join_python("first")
        mixed.settle(4, 4)
        mixed.join_java("other", other)
        mixed.settle(2, 3, 3)
        mixed.join_python("second")
        mixed.settle(2, 2, 2, 2)
        mixed.leave("first")
        mixed.settle(2, 3, 3)
        mixed.kill("victim", sender.sent)
        mixed.settle(4, 4)
        mixed.leave("other")
        mixed.settle(8)
    sent = {*FIRST_NUMBERS, *sender.sent}
    eventually(lambda: mixed.got.keys() >= sent, "the messages sent last")

    mixed.leave("second")
    assert mixed.committed() == len(sent)
    # Messages that a member holds when a queue is revoked are delivered again, but none that were committed.
    assert [mixed.got[number] for number in FIRST_NUMBERS] == [1] * len(FIRST_NUMBERS)


def test_mixed_group_uses_one_strategy_and_resumes_at_common_offsets(
    mixed: MixedGroup, agents: Agents, peer: Peer, names: Names
) -> None:
    with Sender(peer.nameserver_address, names.topic()) as sender:
        mixed.join_python("ours", strategy="averagely_by_circle")
        mixed.settle(8)
        eventually(lambda: len(mixed.got) > 20, "messages for the Python member")
    eventually(lambda: mixed.got.keys() >= set(sender.sent), "the sent messages")
    mixed.leave("ours")
    before = dict(mixed.got)

    agent = agents.get("5.3.3-json")
    agent.call(
        "push_start", name="theirs", group=names.group(), topic=names.topic(), strategy="AVG_BY_CIRCLE"
    )
    mixed.java["theirs"] = agent
    mixed.join_python("again", strategy="averagely_by_circle")
    mixed.settle(4, 4)
    assert sorted(sorted(share) for share in mixed.shares().values()) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    last = range(len(sender.sent), len(sender.sent) + QUEUES)
    with Producer(peer.nameserver_address, group="mixed", config=SENDS) as producer:
        for number, queue in zip(last, producer.queues(names.topic()), strict=True):
            producer.send(names.topic(), str(number), queue=queue)

    def have_arrived() -> bool:
        of_theirs = {int(message["body"]) for message in agent.received("theirs", 0)}
        return mixed.got.keys() | of_theirs >= set(last)

    eventually(have_arrived, "the last message of each queue")
    mixed.leave("theirs")
    again = {number for number, times in before.items() if mixed.got[number] > times}
    assert not again, "the second members must resume at the committed offsets"

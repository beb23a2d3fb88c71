"""Java and Python members of one group on one topic: they share its queues as they come, go and die, and what
is sent meanwhile is lost by none. On RocketMQ's own broker our members average by themselves.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest

from cluster.client import Admin, MessageExt, Producer, PushConfig, PushConsumer
from tests.compat.agent import Agent
from tests.compat.conftest import Agents, Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

QUEUES = 8
SEND_PAUSE_S = 0.005
IN_FLIGHT = 20
ALL_THE_REST = 1 << 30


class Sender:
    """Sends numbers, one after the other, from a thread of its own, until the `with` block ends."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.sent: list[int] = []
        self._nameserver = nameserver
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Producer(self._nameserver, group="mixed") as producer:
            for number in itertools.count():
                producer.send(self._topic, str(number))
                self.sent.append(number)
                if self._is_over.wait(SEND_PAUSE_S):
                    return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()


class MixedGroup:
    """The members of a group, by name, Java's and ours."""

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

    def kill(self, name: str, sent: list[int]) -> set[int]:
        """Kill a Java member; gives those of the numbers sent that it may have consumed untold."""
        agent = self.java.pop(name)
        from_number = len(sent) - IN_FLIGHT
        self._count(name, agent)
        agent.kill()
        return set(range(from_number, len(sent)))

    def _count(self, name: str, agent: Agent) -> None:
        received = agent.received(name, ALL_THE_REST, timeout_s=0.01)
        self.got.update(int(message["body"]) for message in received)

    def settle(self, *sizes: int) -> None:
        """Wait until the queues are shared out in shares of these sizes, each queue once."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            shares = self.shares()
            taken = sorted(queue for share in shares.values() for queue in share)
            if taken == list(range(QUEUES)) and sorted(map(len, shares.values())) == sorted(sizes):
                return
            time.sleep(0.05)
        raise AssertionError(f"shares of {sizes} never came: {shares}")

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


def test_members_of_both_kinds_come_go_and_die_and_nothing_is_lost(
    mixed: MixedGroup, agents: Agents, peer: Peer, names: Names
) -> None:
    victim, other = agents.start("4.9.8-json"), agents.get("5.3.3-json")
    with Sender(peer.nameserver_address, names.topic()) as sender:
        mixed.join_java("victim", victim)
        mixed.settle(8)
        mixed.join_python("first")
        mixed.settle(4, 4)
        mixed.join_java("other", other)
        mixed.settle(2, 3, 3)
        mixed.join_python("second")
        mixed.settle(2, 2, 2, 2)
        mixed.leave("first")
        mixed.settle(2, 3, 3)
        untold = mixed.kill("victim", sender.sent)
        mixed.settle(4, 4)
        mixed.leave("other")
        mixed.settle(8)
    eventually(lambda: mixed.got.keys() | untold >= set(sender.sent), "what was sent last")

    again = [number for number, times in mixed.got.items() if times > 1]
    # What a member has in hand when a queue goes from it comes again: here the messages of half a second.
    assert len(again) < len(sender.sent) / 4, again
    mixed.leave("second")
    with Admin(peer.nameserver_address) as admin:
        committed = admin.committed_offsets(names.group(), names.topic())
    assert sum(offset or 0 for offset in committed.values()) == len(sender.sent)


def test_they_agree_on_a_strategy_and_go_on_where_the_other_kind_was(
    mixed: MixedGroup, agents: Agents, peer: Peer, names: Names
) -> None:
    with Sender(peer.nameserver_address, names.topic()) as sender:
        mixed.join_python("ours", strategy="averagely_by_circle")
        mixed.settle(8)
        eventually(lambda: len(mixed.got) > 20, "messages for ours")
    eventually(lambda: mixed.got.keys() >= set(sender.sent), "what was sent")
    mixed.leave("ours")

    agent = agents.get("5.3.3-json")
    agent.call(
        "push_start", name="theirs", group=names.group(), topic=names.topic(), strategy="AVG_BY_CIRCLE"
    )
    mixed.java["theirs"] = agent
    mixed.join_python("again", strategy="averagely_by_circle")
    mixed.settle(4, 4)
    assert sorted(sorted(share) for share in mixed.shares().values()) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    mixed.leave("theirs")
    assert max(mixed.got.values()) == 1, "the other kind began where the first had come to"

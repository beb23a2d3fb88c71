"""Kill processes of a cluster under load: no acknowledged message is lost, no queue has two owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from cluster.client import (
    Admin,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from tests.background import Background
from tests.checkers import Recorder, assert_consistent
from tests.cluster.conftest import RayMQ
from tests.cluster.ray_helpers import kill_process, wait_for_restart
from tests.eventually import LIMIT_S, TIME_SCALE, eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow]

QUEUES = 4
LEASE_MS = int(5000 * TIME_SCALE)
"""Longer than any pause of a test process: after its lease a member still lists its queues for a moment."""


def number_of(broker: str, queue_id: int) -> int:
    """Return a unique number for a queue: histories identify queues by number."""
    return 1000 * (ord(broker[-1]) - ord("a")) + queue_id


class Load(Background):
    """Producer that sends numbered bodies with keys and records acknowledgements and the history."""

    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__()
        self.acknowledged: list[bytes] = []
        self.history = Recorder()
        self._producer = producer
        self._topic = topic

    def run(self) -> None:
        number = 0
        while not self.is_over.wait(0.002):
            body = b"%06d" % number
            key = str(number % 7)
            operation = self.history.send("load", self._topic, body.decode(), key=key)
            result = self._producer.send(self._topic, body, sharding_key=key)
            # The client retries a send whose response was lost: the message may be stored twice.
            queue = number_of(result.queue.broker_name, result.queue.queue_id)
            operation.ok(queue, result.queue_offset, attempts=100)
            self.acknowledged.append(body)
            number += 1


@pytest.fixture
def producer(running: RayMQ) -> Iterator[Producer]:
    config = ProducerConfig(group="faults", delivery_timeout_ms=int(2 * LIMIT_S * 1000))
    with Producer(running.nameserver, config=config) as producer:
        yield producer


def make_topic(raymq: RayMQ, topic: str) -> None:
    with Admin(raymq.nameserver) as admin:
        admin.create_topic(topic, queues=QUEUES)


def test_clients_continue_after_a_broker_is_killed(running: RayMQ, producer: Producer, topic: str) -> None:
    make_topic(running, topic)
    received: Counter[bytes] = Counter()
    with (
        PullConsumer(running.nameserver, group=topic) as consumer,
        Load(producer, topic) as load,
    ):
        consumer.subscribe(topic)

        def has_received(count: int) -> bool:
            for message in consumer.poll(1000, 0.2):
                received[message.body] += 1
                queue = number_of(message.broker_name, message.queue_id)
                load.history.read(
                    "reader", topic, message.topic, queue, message.queue_offset, message.body.decode()
                )
            return len(received) >= count

        eventually(lambda: has_received(100), "the first messages")
        pid = kill_process("broker-a-0")
        wait_for_restart("broker-a-0", pid)
        sent = len(load.acknowledged)
        eventually(lambda: has_received(sent + 100), "messages after the kill")
        load.__exit__()
        everything = set(load.acknowledged)
        eventually(lambda: has_received(0) and received.keys() >= everything, "every acknowledged message")
    # After a kill a group may resume at older, saved offsets.
    assert_consistent(load.history.events, ignore=["not_sequential"])


class Members:
    """Push consumers of one group; `shares` detects queues that two of them hold at the same time."""

    def __init__(self, raymq: RayMQ, group: str, topic: str) -> None:
        self.received: Counter[bytes] = Counter()
        self.doubly_owned: list[MessageQueue] = []
        self._raymq = raymq
        self._group = group
        self._topic = topic
        self._consumers: list[PushConsumer] = []
        self._stack = ExitStack()

    def join(self) -> None:
        config = PushConfig(
            group=self._group,
            lease_ms=LEASE_MS,
            sync_interval_ms=200,
            commit_interval_ms=200,
            consume_threads=2,
        )
        consumer = PushConsumer(self._raymq.nameserver, listener=self._listen, config=config)
        self._stack.enter_context(consumer)
        consumer.subscribe(self._topic)
        self._consumers.append(consumer)

    def _listen(self, messages: list[MessageExt]) -> None:
        self.received.update(message.body for message in messages)

    def shares(self) -> list[int]:
        """Return the number of queues of each member; add queues with two owners to `doubly_owned`."""
        for consumer in self._consumers:
            before = set(consumer.assignment())
            others = {
                queue for other in self._consumers if other is not consumer for queue in other.assignment()
            }
            # `consumer` is read before and after the others: only queues held all the time count.
            self.doubly_owned += before & others & set(consumer.assignment())
        return sorted(len(consumer.assignment()) for consumer in self._consumers)

    @contextmanager
    def open(self) -> Iterator[Members]:
        with self._stack:
            yield self


def test_rebalancer_killed_during_rebalance_gives_no_queue_two_owners(
    running: RayMQ, producer: Producer, topic: str
) -> None:
    make_topic(running, topic)
    with Members(running, f"{topic}-members", topic).open() as members, Load(producer, topic) as load:
        members.join()
        eventually(lambda: members.shares() == [2 * QUEUES], "one member with all queues")
        members.join()
        pid = kill_process("rebalancer-0")
        received = len(members.received)
        eventually(
            lambda: members.shares() and len(members.received) > received + 50,
            "consumption without the rebalancer",
        )
        wait_for_restart("rebalancer-0", pid)
        eventually(lambda: members.shares() == [QUEUES, QUEUES], "two members with half of the queues each")
        load.__exit__()
        eventually(lambda: members.received.keys() >= set(load.acknowledged), "every acknowledged message")
        assert members.doubly_owned == []

"""Queue selectors: functions that choose the queue of a message (RocketMQ MessageQueueSelector)."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Protocol

from cluster.client.errors import ConfigInvalid
from store.message.message import Message
from store.message.message_queue import MessageQueue
from store.message.tags import java_hash


class MessageQueueSelector(Protocol):
    """Function that chooses the queue of a message."""

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return one of `queues` for `message`.

        `queues` is not empty, and its order is the same at each call. `argument` is the value that the caller
        passed to the send.
        """


def queue_index(key: str, count: int) -> int:
    """Return the index of the queue of `key` among `count` queues.

    It is `abs(hashCode % count)`, as in RocketMQ's SelectMessageQueueByHash.
    """
    return abs(java_hash(key)) % count  # Java truncates towards zero, so |h % n| = |h| % n


class SelectMessageQueueByHash:
    """Selector that sends messages with equal arguments (compared as strings) to the same queue.

    Same as RocketMQ's SelectMessageQueueByHash.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return the queue that the hash of `argument` selects."""
        return queues[queue_index(str(argument), len(queues))]


class SelectMessageQueueByRandom:
    """Selector that chooses a random queue, as RocketMQ's SelectMessageQueueByRandom."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return a random element of `queues`."""
        return self._random.choice(queues)


class SelectMessageQueueByMachineRoom:
    """Selector that uses only queues of brokers in the given machine rooms.

    A broker named `room@name` is in machine room `room`, as for AllocateMessageQueueByMachineRoom. Without an
    argument the queues take turns; with one, the hash of its string selects the queue. RocketMQ's class of
    this name is not implemented: it returns null.
    """

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)
        self._turns = RoundRobin()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return one of `queues` in the machine rooms.

        Raises ConfigInvalid if the machine rooms have no queue of the topic.
        """
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        if not near:
            rooms = ", ".join(sorted(self._rooms))
            brokers = ", ".join(sorted({queue.broker_name for queue in queues}))
            raise ConfigInvalid(
                f"topic {message.topic!r} has no queue in machine rooms {rooms}; its brokers are {brokers} "
                "(a broker in a machine room is named room@name)"
            )
        if argument is None:
            return self._turns.choose(near)
        return near[queue_index(str(argument), len(near))]

    def _is_near(self, broker_name: str) -> bool:
        room, at, _ = broker_name.partition("@")
        return bool(at) and room in self._rooms


class RoundRobin:
    """Chooses the queues of a topic in turn. It keeps one cursor per topic."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._cursors: dict[str, int] = {}

    def choose(self, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """Return the next of `queues`, which must not be empty.

        Queues of `avoid_broker` are skipped, unless all queues are on that broker.
        """
        topic = queues[0].topic
        cursor = self._cursors.get(topic, self._start)
        count = len(queues)
        for step in range(count):
            queue = queues[(cursor + step) % count]
            if queue.broker_name != avoid_broker:
                break
        else:
            queue, step = queues[cursor % count], 0
        self._cursors[topic] = cursor + step + 1
        return queue

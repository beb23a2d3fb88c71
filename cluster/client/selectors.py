"""Selectors: choose the queue of a message."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Protocol

from cluster.client.errors import ConfigInvalid
from store.message.message import Message
from store.message.message_queue import MessageQueue
from store.message.tags import java_hash


class MessageQueueSelector(Protocol):
    """Chooses one of `queues` (never empty, in a stable order) for `message`; `argument` is the caller's
    own.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return one of `queues`."""
        ...


def queue_index(key: str, count: int) -> int:
    """Return the index of `key` among `count` queues: its Java hash, made positive, modulo count.

    RocketMQ SelectMessageQueueByHash: `abs(hashCode % count)`.
    """
    return abs(java_hash(key)) % count  # Java truncates towards zero, so |h % n| = |h| % n


class SelectMessageQueueByHash:
    """Equal arguments (as text) go to one queue, in the order in which they are sent. RocketMQ
    SelectMessageQueueByHash.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return the queue of `argument`."""
        return queues[queue_index(str(argument), len(queues))]


class SelectMessageQueueByRandom:
    """Any queue, by a seeded generator. RocketMQ SelectMessageQueueByRandom."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return a random one of `queues`."""
        return self._random.choice(queues)


class SelectMessageQueueByMachineRoom:
    """Queues of brokers in the given rooms, in turn; with an argument (as text) the one of its hash.

    A broker `room@name` is in `room` (as for AllocateMessageQueueByMachineRoom). RocketMQ has a class of
    this name that selects nothing.
    """

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)
        self._turns = RoundRobin()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        """Return one of the rooms' queues. Raises ConfigInvalid if they have none."""
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        if not near:
            rooms = ", ".join(sorted(self._rooms))
            brokers = ", ".join(sorted({queue.broker_name for queue in queues}))
            raise ConfigInvalid(
                f"no queue of topic {message.topic!r} is in the rooms {rooms}; its brokers are {brokers} "
                "(a broker in a room is named room@name)"
            )
        if argument is None:
            return self._turns.choose(near)
        return near[queue_index(str(argument), len(near))]

    def _is_near(self, broker_name: str) -> bool:
        room, at, _ = broker_name.partition("@")
        return bool(at) and room in self._rooms


class RoundRobin:
    """Takes the queues in turn, one cursor per topic; a retry avoids the broker that failed."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._cursors: dict[str, int] = {}

    def choose(self, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """Return the next of `queues`, on another broker than `avoid_broker` if there is one."""
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

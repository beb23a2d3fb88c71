"""LiteWorld: lite sessions with lite topics in memory, a manual clock and clients that wait for messages."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.reading.queue_reader import ReadLimits
from actors.broker.features.lite.lite_orders import OffsetOption, lite_queue
from actors.broker.features.lite.lite_sessions import LiteSessions, Sync
from actors.broker.features.lite.subscriptions import LiteClient, LiteGroup
from store.lite.lite_index import LiteMessage
from store.metadata import ConsumerOffsetTable
from tests.conftest import ClockAtRest

GROUP = LiteGroup("G", "T")
INVISIBLE_MS = 60_000
MESSAGE_BYTES = 100


class Delivery(NamedTuple):
    """A message that a pop has returned."""

    name: str
    offset: int
    pop_ms: int
    count: int


class LiteWorld:
    """Has the interface `LiteTopics`: a lite topic is a list of the times at which messages were stored."""

    max_lite_subscriptions = 100_000
    lite_subscription_timeout_ms = 180_000

    def __init__(self, group: LiteGroup = GROUP, seed: int = 0) -> None:
        self.group = group
        self.clock = ClockAtRest()
        self.stored: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.first: Counter[tuple[str, str]] = Counter()
        self.waiting: set[str] = set()
        self.woken: list[str] = []
        self.notices: list[tuple[str, str]] = []
        self.offsets = ConsumerOffsets(ConsumerOffsetTable(self.clock))
        self.sessions = LiteSessions(
            self,
            self.offsets,
            self.clock,
            random.Random(seed),
            self._is_waiting,
            self._wake,
            self._notify,
            self,
        )

    def min_offset(self, topic: str, name: str) -> int:
        return self.first[topic, name]

    def max_offset(self, topic: str, name: str) -> int:
        return len(self.stored.get((topic, name), ()))

    def read(self, topic: str, name: str, offset: int, count: int) -> Sequence[LiteMessage]:
        end = min(offset + count, self.max_offset(topic, name))
        return [LiteMessage(each, each * MESSAGE_BYTES, MESSAGE_BYTES, 0) for each in range(offset, end)]

    def offset_at(self, topic: str, name: str, time_ms: int) -> int:
        return sum(each < time_ms for each in self.stored.get((topic, name), ()))

    def names(self, topic: str) -> Iterable[str]:
        return [name for each, name in self.stored if each == topic]

    def send(self, *names: str) -> None:
        for name in names:
            self.stored["T", name].append(self.clock.wall_ms())
            self.sessions.events.arrived("T", name)

    def send_unseen(self, *names: str) -> None:
        """Store messages before any client is there, as those that a restarted broker has."""
        for name in names:
            self.stored["T", name].append(self.clock.wall_ms())

    def add(self, client_id: str, *names: str, option: OffsetOption | None = None) -> None:
        self.sessions.add(Sync(self.group, client_id, names, client_id, option))

    def replace(self, client_id: str, *names: str) -> None:
        self.sessions.replace(Sync(self.group, client_id, names, client_id))

    def remove(self, client_id: str, *names: str) -> None:
        self.sessions.remove(Sync(self.group, client_id, names, client_id))

    def client(self, client_id: str) -> LiteClient:
        client = self.sessions.subscriptions.client(self.group.name, client_id)
        assert client is not None
        return client

    def wait(self, client_id: str) -> None:
        """Hold a pop of the client."""
        self.waiting.add(client_id)

    def pop(
        self, client_id: str, messages: int = 32, size_bytes: int = 1 << 20, attempt_id: str = ""
    ) -> list[Delivery]:
        client = self.sessions.subscriptions.client(self.group.name, client_id)
        if client is None:
            return []
        found = self.sessions.find(client, attempt_id, ReadLimits(messages, size_bytes))
        pop_ms = self.clock.wall_ms()
        counts = self.sessions.claim(client, found, pop_ms, INVISIBLE_MS, attempt_id)
        offsets = [(each.name, entry.offset) for each in found for entry in each.entries]
        assert len(counts) == len(offsets)
        numbers = [int(each.split(" ")[2]) if " " in each else 0 for each in counts]
        return [Delivery(*each, pop_ms, count) for each, count in zip(offsets, numbers, strict=True)]

    def ack(self, *deliveries: Delivery) -> None:
        for each in deliveries:
            self.sessions.orders.ack(lite_queue(self.group.name, "T", each.name), each.offset, each.pop_ms)

    def change(self, delivery: Delivery, invisible_ms: int, *, is_suspension: bool = False) -> int | None:
        queue = lite_queue(self.group.name, "T", delivery.name)
        return self.sessions.orders.change(
            queue, delivery.offset, delivery.pop_ms, invisible_ms, is_suspension=is_suspension
        )

    def committed(self, name: str) -> int | None:
        return self.offsets.query(self.group.name, lite_queue("", "T", name).topic, 0)

    def pass_time(self, ms: int) -> None:
        """Let time pass, in steps of at most a second, with the services of the broker."""
        while ms > 0:
            step = min(ms, 1_000)
            self.clock.advance(step)
            ms -= step
            self.tick()

    def tick(self) -> None:
        self.sessions.orders.tick()
        self.sessions.scan()
        self.sessions.events.tick()

    def restart(self) -> None:
        """Lose what is in memory, as a broker that restarts or another leader."""
        self.sessions.clear()
        self.waiting.clear()

    def _is_waiting(self, client: LiteClient) -> bool:
        return client.client_id in self.waiting

    def _wake(self, client: LiteClient) -> None:
        if client.client_id in self.waiting:
            self.waiting.discard(client.client_id)
            self.woken.append(client.client_id)

    def _notify(self, client: LiteClient, name: str) -> None:
        self.notices.append((client.client_id, name))


def names_of(deliveries: Iterable[Delivery]) -> list[tuple[str, int]]:
    return [(each.name, each.offset) for each in deliveries]

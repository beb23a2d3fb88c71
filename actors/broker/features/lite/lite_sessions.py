"""LiteSessions: the requests of lite clients as one state machine: subscribe, pop, ack, change.

sync ──► Subscriptions ──who lost what──► notices
  │            └──new names──┐
  └─option─► LiteOrders ─────┴──ready──► Events ──► resumed pops
pop, ack, change ──► LiteOrders ──batch ended──┘
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from actors.bounds import Use
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.reading.queue_reader import ReadLimits
from actors.broker.features.lite.events import Events
from actors.broker.features.lite.lite_orders import (
    FoundMessages,
    LiteOrders,
    LiteTopics,
    OffsetOption,
    Start,
)
from actors.broker.features.lite.subscriptions import Change, LiteClient, LiteGroup, LiteLimits, Subscriptions
from store.common.clock import Clock


class Sync(NamedTuple):
    """One entry of a request that changes the subscriptions of a client."""

    group: LiteGroup
    client_id: str
    names: Collection[str]
    channel: object = None
    option: OffsetOption | None = None


class LiteSessions:
    """The lite clients of one broker: what they subscribe, what they are waiting for, what is in flight."""

    def __init__(
        self,
        topics: LiteTopics,
        offsets: ConsumerOffsets,
        clock: Clock,
        rng: random.Random,
        is_waiting: Callable[[LiteClient], bool],
        wake: Callable[[LiteClient], None],
        notify: Callable[[LiteClient, str], None],
        limits: LiteLimits,
    ) -> None:
        """Create the object.

        Args:
            topics: the lite topics that have messages.
            offsets: the groups' commit offsets.
            clock: the time of all decisions.
            rng: chooses among the clients of a group.
            is_waiting: returns True if a pop of the client is held.
            wake: resumes the oldest held pop of a client.
            notify: tells a client that it has lost a lite topic.
            limits: the limits of subscriptions.
        """
        self._notify = notify
        self.subscriptions = Subscriptions(clock, limits)
        self.orders = LiteOrders(topics, offsets, clock, self._became_ready)
        self.events = Events(
            self.subscriptions, clock, rng, self.orders.is_ready, topics.names, is_waiting, wake
        )

    def arrived(self, lite_topics: Iterable[tuple[str, str]]) -> None:
        """Note that messages have arrived in lite topics, each with its topic and name."""
        if self.subscriptions.clients:
            for topic, name in lite_topics:
                self.events.arrived(topic, name)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return self.subscriptions.bounds()

    def add(self, sync: Sync) -> None:
        """Subscribe more lite topics (PARTIAL_ADD). Raises Refused if a quota is exceeded."""
        change = self.subscriptions.add(sync.group, sync.client_id, sync.names, sync.channel)
        group = sync.group
        for other, name in change.taken:
            self._notify(other, name)
            if group.resets_on_takeover:
                self.orders.reset(group.name, group.topic, name, OffsetOption(Start.MIN))
            self.events.unsubscribed(other, (name,))
        if sync.option is not None:
            for name in dict.fromkeys(sync.names):
                self.orders.reset(group.name, group.topic, name, sync.option)
        self._apply(change)

    def replace(self, sync: Sync) -> None:
        """Subscribe exactly these lite topics (COMPLETE_ADD). Raises Refused if a quota is exceeded."""
        change = self.subscriptions.replace(sync.group, sync.client_id, sync.names, sync.channel)
        self._apply(change)
        if change.client is not None:
            for name in change.refused:
                self._notify(change.client, name)

    def remove(self, sync: Sync) -> None:
        """Unsubscribe lite topics (PARTIAL_REMOVE)."""
        group = sync.group
        change = self.subscriptions.remove(group.name, sync.client_id, sync.names, sync.channel)
        if group.resets_on_removal:
            for name in change.removed:
                self.orders.reset(group.name, group.topic, name, OffsetOption(Start.MIN))
        self._apply(change)

    def remove_client(self, group: str, client_id: str) -> None:
        """Remove a client (COMPLETE_REMOVE)."""
        client = self.subscriptions.client(group, client_id)
        if client is not None:
            self._drop(client)

    def find(self, client: LiteClient, attempt_id: str, limits: ReadLimits) -> list[FoundMessages]:
        """Return the messages of a pop. Nothing changes for other pops until `claim`."""
        self.events.popped(client)
        is_repeated = bool(attempt_id) and attempt_id == client.attempt_id
        again = (each for each in client.answered if client.is_wildcard or each in client.names)
        names = dict.fromkeys((*(again if is_repeated else ()), *client.events))
        return self.orders.find(client.group, client.topic, names, attempt_id, limits)

    def claim(
        self,
        client: LiteClient,
        found: Sequence[FoundMessages],
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str,
    ) -> list[str]:
        """Claim the messages that were found. Return an item for each: how often it was delivered before.

        The receipts of the messages must have the time `pop_ms`, too.
        """
        counts = self.orders.claim(found, pop_ms, invisible_ms, attempt_id)
        self.events.done(client, [each.name for each in found])
        if counts:
            client.attempt_id = attempt_id
            client.answered = tuple(each.name for each in found if each.entries) if attempt_id else ()
        return counts

    def scan(self) -> None:
        """Remove clients that have expired, and give the events of stalled ones to others."""
        for client in self.subscriptions.expired():
            self._drop(client)
        self.events.scan()

    def clear(self) -> None:
        """Forget all clients and batches: another replica serves them now."""
        self.subscriptions.clear()
        self.orders.clear()
        self.events.clear()

    def _drop(self, client: LiteClient) -> None:
        self.subscriptions.remove_client(client)
        self.events.removed(client)

    def _apply(self, change: Change) -> None:
        if change.client is not None:
            self.events.unsubscribed(change.client, change.removed)
            self.events.subscribed(change.client, change.added)

    def _became_ready(self, group: str, topic: str, name: str) -> None:
        self.events.became_ready(group, topic, name)

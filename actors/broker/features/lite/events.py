"""Events: which client of a group looks at a lite topic that may have messages.

    message arrived ───────────┐
    lite topic subscribed ─────┤   ready?   ┌── a client that waits for messages: its pop is resumed
    batch acked or visible ────┼──────────► ├── another client: the event stays in its queue
    offset reset ──────────────┤            └── all queues are full: the clients are behind
    client removed or stalled ─┘
    behind ──queue nearly empty──► look at all lite topics of the client again

A lite topic is ready for a group if it has a message after the group's offset and no batch in flight. The
end of a batch is an event too, so an event for a lite topic that is not ready is dropped. A client that
leaves events in its queue is stalled: they go to others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from actors.broker.features.lite.subscriptions import LiteClient, Subscriptions
from store.common.clock import NS_PER_MS, Clock

SCAN_MS: Final = 1_000
"""How often stalled clients are looked for (RocketMQ: 10 s)."""
EVENT_WAIT_MS: Final = 2_000
"""A client is stalled if it has left an event in its queue for so long without waiting for messages."""
STALLED_MS: Final = 10_000
"""For so long, a stalled client gets events only if there is no other one, unless it pops."""
LOOKED_AT_MAX: Final = 2_000
"""So many lite topics are looked at in one step, because the event loop serves others too."""


class Events:
    """The events of all clients of one broker."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        clock: Clock,
        rng: random.Random,
        is_ready: Callable[[str, str, str], bool],
        names: Callable[[str], Iterable[str]],
        is_waiting: Callable[[LiteClient], bool],
        wake: Callable[[LiteClient], None],
    ) -> None:
        """Create the object.

        Args:
            subscriptions: the clients.
            clock: its monotonic time decides which clients are stalled.
            rng: chooses the client that gets an event.
            is_ready: returns True if a lite topic (group, topic, name) has a message that can be popped.
            names: returns the names of all lite topics of a topic, as they are at the call.
            is_waiting: returns True if a pop of the client is held.
            wake: resumes the oldest held pop of a client.
        """
        self._subscriptions = subscriptions
        self._clock = clock
        self._rng = rng
        self._is_ready = is_ready
        self._names = names
        self._is_waiting = is_waiting
        self._wake = wake
        self._looking: dict[LiteClient, None] = {}

    @property
    def count(self) -> int:
        """The number of events that wait, of all clients."""
        return sum(len(each.events) for each in self._subscriptions.clients)

    def arrived(self, topic: str, name: str) -> None:
        """Note that messages have arrived in a lite topic."""
        for group, clients in self._subscriptions.groups_of(topic, name):
            self._offer_if_ready(group, clients, name)

    def became_ready(self, group: str, topic: str, name: str) -> None:
        """Note that a batch of a group has ended, or that its offset was reset."""
        self._offer_if_ready(group, self._subscriptions.clients_of(group, topic, name), name)

    def subscribed(self, client: LiteClient, names: Iterable[str]) -> None:
        """Note that a client has subscribed lite topics, which may have messages already."""
        if client.is_wildcard:
            client.is_behind = True
            self._look(client)
        for name in names:
            self.became_ready(client.group, client.topic, name)

    def unsubscribed(self, client: LiteClient, names: Iterable[str]) -> None:
        """Give the events of lite topics that a client has no more to others."""
        for name in names:
            if client.events.pop(name, None) is not None:
                self.became_ready(client.group, client.topic, name)

    def removed(self, client: LiteClient) -> None:
        """Give all events of a client that is removed already to others."""
        self._looking.pop(client, None)
        self._hand_over(client, list(client.events))

    def popped(self, client: LiteClient) -> None:
        """Note that a client pops: it is not stalled."""
        client.stalled_ns = 0

    def done(self, client: LiteClient, names: Iterable[str]) -> None:
        """Remove events that a pop of the client has looked at."""
        for name in names:
            client.events.pop(name, None)
        self._look(client)

    def refresh(self, client: LiteClient) -> None:
        """Look at all lite topics of a client again, on the request of an administrator."""
        client.is_behind = True
        self._look(client)

    def scan(self) -> None:
        """Hand over the events of stalled clients, and look at what clients have missed."""
        now_ns = self._clock.monotonic_ns()
        for client in list(self._subscriptions.clients):
            self._look(client)
            oldest_ns = next(iter(client.events.values()), now_ns)
            if now_ns - oldest_ns < EVENT_WAIT_MS * NS_PER_MS or client.stalled_ns > now_ns:
                continue
            if self._is_waiting(client):
                self._wake(client)
                continue
            client.stalled_ns = now_ns + STALLED_MS * NS_PER_MS
            for name in list(client.events):
                clients = self._subscriptions.clients_of(client.group, client.topic, name)
                if any(each is not client and each.stalled_ns <= now_ns for each in clients):
                    self._hand_over(client, (name,))

    def clear(self) -> None:
        """Forget which clients have more to look at."""
        self._looking.clear()

    def left_ms(self) -> int:
        """Return the time until the next `tick`: 0 if clients have more to look at now."""
        return 0 if self._looking else SCAN_MS

    def tick(self) -> None:
        """Look at a part of the lite topics of the clients that have missed events."""
        for client in list(self._looking):
            self._look(client)

    def _hand_over(self, client: LiteClient, names: Sequence[str]) -> None:
        for name in names:
            client.events.pop(name, None)
        for name in names:
            self.became_ready(client.group, client.topic, name)

    def _offer_if_ready(self, group: str, clients: Sequence[LiteClient], name: str) -> None:
        if clients and self._is_ready(group, clients[0].topic, name):
            self._offer(clients, name)

    def _offer(self, clients: Sequence[LiteClient], name: str) -> None:
        """Put an event into the queue of one client of a group, unless it is in one that is not stalled."""
        now_ns = self._clock.monotonic_ns()
        for each in clients:
            if name in each.events:
                if len(clients) == 1 or each.stalled_ns <= now_ns:
                    self._wake(each)
                    return
                del each.events[name]
        first = self._rng.randrange(len(clients)) if len(clients) > 1 else 0
        in_turn = (*clients[first:], *clients[:first])
        with_room = [each for each in in_turn if len(each.events) < each.events_max]
        if not with_room:
            for each in clients:
                each.is_behind = True
            return
        chosen = min(with_room, key=lambda each: (not self._is_waiting(each), each.stalled_ns > now_ns))
        chosen.events[name] = now_ns
        self._wake(chosen)

    def _look(self, client: LiteClient) -> None:
        """Look at the next lite topics of a client that has missed events, if its queue is nearly empty."""
        is_paused = client not in self._looking
        if is_paused and len(client.events) > client.events_max // 5:
            return
        if client.cursor is None:
            if not client.is_behind:
                return
            client.is_behind = False
            client.cursor = iter(self._names(client.topic) if client.is_wildcard else list(client.names))
        self._looking[client] = None
        for _ in range(LOOKED_AT_MAX):
            if len(client.events) >= client.events_max:
                break
            name = next(client.cursor, None)
            if name is None:
                client.cursor = None
                break
            self.became_ready(client.group, client.topic, name)
        else:
            return
        del self._looking[client]

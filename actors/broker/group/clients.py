"""Who is connected: producers and consumers by group, as their heartbeats tell.

A client is known by its id and speaks over one connection at a time; a heartbeat over a new connection takes
its place over. It is gone when it unregisters, when its connection closes, or when nothing was heard of it
for the expiry time. Subscriptions belong to the group, and for each topic the newest version wins, as in
RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

_log = get_logger(__name__)

# RocketMQ's Broker2Client gives a client this long to answer a request of its broker's.
CLIENT_TIMEOUT_MS = 10_000

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of one topic."""

    topic: str
    expression: str
    version: int = 0
    expression_type: str = "TAG"
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Member(Generic[ConnectionT]):
    """One client in one group."""

    client_id: str
    connection: ConnectionT
    last_heartbeat_ns: int


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionT]):
    """The consumers of a group that this broker knows."""

    name: str
    members: dict[str, Member[ConnectionT]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """What a heartbeat says of one consumer group."""

    group: str
    subscriptions: Mapping[str, Subscription]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class _Place(NamedTuple):
    """A client's place among the producers or the consumers of a group."""

    is_producer: bool
    group: str
    client_id: str


class Clients(Generic[ConnectionT]):
    """The producers and consumers of one broker."""

    def __init__(self, clock: Clock, expiry_ms: int) -> None:
        self._clock = clock
        self._expiry_ns = expiry_ms * NS_PER_MS
        self._consumers: dict[str, ConsumerGroup[ConnectionT]] = {}
        self._producers: dict[str, dict[str, Member[ConnectionT]]] = {}
        # Who speaks over a connection: thousands may close at once, and each then looks at its own only.
        self._spoken_for: dict[ConnectionT, set[_Place]] = {}
        self._on_subscription: list[Callable[[str], None]] = []

    def on_subscription(self, tell: Callable[[str], None]) -> None:
        """Call this with a group's name whenever a heartbeat has told a new subscription of it."""
        self._on_subscription.append(tell)

    def group(self, name: str) -> ConsumerGroup[ConnectionT] | None:
        """The consumer group, if any of its members is connected."""
        return self._consumers.get(name)

    def may_consume(self, group: str, topic: str) -> bool:
        """Say whether a group consumes a topic as far as its members tell; one that subscribes to nothing may
        read any.
        """
        known = self._consumers.get(group)
        return known is None or not known.subscriptions or topic in known.subscriptions

    def groups(self) -> Iterable[ConsumerGroup[ConnectionT]]:
        """All consumer groups that have members."""
        return self._consumers.values()

    def producers(self, group: str) -> Iterable[Member[ConnectionT]]:
        """The producers of a group."""
        return self._producers.get(group, {}).values()

    def producer_connection(self, client_id: str) -> ConnectionT | None:
        """The connection of a client that produces, for whatever group."""
        found = (members.get(client_id) for members in self._producers.values())
        return next((member.connection for member in found if member is not None), None)

    def producer_groups(self) -> Iterable[str]:
        """The producer groups that have members."""
        return self._producers.keys()

    def register_producer(self, group: str, client_id: str, connection: ConnectionT) -> None:
        """Take a producer's heartbeat in."""
        members = self._producers.setdefault(group, {})
        self._add_member(members, _Place(True, group, client_id), connection)

    def register_consumer(
        self, heartbeat: ConsumerHeartbeat, client_id: str, connection: ConnectionT
    ) -> bool:
        """Take a consumer's heartbeat in; True when members or subscriptions of the group have changed."""
        group = self._consumers.setdefault(heartbeat.group, ConsumerGroup(heartbeat.group))
        is_new = client_id not in group.members
        self._add_member(group.members, _Place(False, heartbeat.group, client_id), connection)
        group.consume_type = heartbeat.consume_type
        group.message_model = heartbeat.message_model
        group.consume_from_where = heartbeat.consume_from_where
        before = group.subscriptions
        has_changed = self._subscribe(group, heartbeat.subscriptions, client_id) or is_new
        if group.subscriptions is not before:
            for tell in self._on_subscription:
                tell(heartbeat.group)
        return has_changed

    def unregister_producer(self, group: str, client_id: str) -> None:
        """Forget a producer."""
        members = self._producers.get(group)
        if members is None:
            return
        self._remove_member(members, _Place(True, group, client_id))
        if not members:
            del self._producers[group]

    def unregister_consumer(self, group: str, client_id: str) -> bool:
        """Forget a consumer; True when it was known."""
        known = self._consumers.get(group)
        if known is None or not self._remove_member(known.members, _Place(False, group, client_id)):
            return False
        if not known.members:
            del self._consumers[group]
        return True

    def connection_closed(self, connection: ConnectionT) -> list[tuple[str, str]]:
        """Forget all that spoke over a connection; gives the (group, client id) of each consumer."""
        gone = []
        for is_producer, group, client_id in sorted(self._spoken_for.get(connection, ())):
            if is_producer:
                self.unregister_producer(group, client_id)
            elif self.unregister_consumer(group, client_id):
                gone.append((group, client_id))
        return gone

    def expire(self) -> list[tuple[str, str]]:
        """Forget all that were not heard of for too long; gives the (group, client id) of each consumer."""
        before_ns = self._clock.monotonic_ns() - self._expiry_ns
        return self._drop(lambda member: member.last_heartbeat_ns < before_ns)

    def _add_member(
        self, members: dict[str, Member[ConnectionT]], place: _Place, connection: ConnectionT
    ) -> None:
        """Note that the client is heard of, over this connection from now on."""
        known = members.get(place.client_id)
        if known is None or known.connection != connection:
            self._remove_member(members, place)
            self._spoken_for.setdefault(connection, set()).add(place)
        members[place.client_id] = Member(place.client_id, connection, self._clock.monotonic_ns())

    def _remove_member(self, members: dict[str, Member[ConnectionT]], place: _Place) -> bool:
        """Forget the client; True when it was known."""
        member = members.pop(place.client_id, None)
        if member is None:
            return False
        places = self._spoken_for[member.connection]
        places.discard(place)
        if not places:
            del self._spoken_for[member.connection]
        return True

    def _drop(self, is_gone: Callable[[Member[ConnectionT]], bool]) -> list[tuple[str, str]]:
        for producer_group, client_id in list(_found(self._producers, is_gone)):
            self.unregister_producer(producer_group, client_id)
        consumers = {name: group.members for name, group in self._consumers.items()}
        gone = list(_found(consumers, is_gone))
        for consumer_group, client_id in gone:
            self.unregister_consumer(consumer_group, client_id)
        return gone

    @staticmethod
    def _subscribe(
        group: ConsumerGroup[ConnectionT], subscriptions: Mapping[str, Subscription], client_id: str
    ) -> bool:
        known = group.subscriptions
        merged = {topic: _newer(known.get(topic), each) for topic, each in subscriptions.items()}
        if merged == known:
            return False
        before = {topic: each.expression for topic, each in known.items()}
        now = {topic: each.expression for topic, each in merged.items()}
        if before and before != now and len(group.members) > 1:
            _log.warning(
                "subscriptions_differ", group=group.name, client_id=client_id, before=before, now=now
            )
        group.subscriptions = merged
        return before != now


def _newer(known: Subscription | None, heard: Subscription) -> Subscription:
    # Members subscribe at different times; one whose pull names a newer version than the group's is refused.
    return heard if known is None or heard.version >= known.version else known


def _found(
    groups: Mapping[str, Mapping[str, Member[ConnectionT]]], is_wanted: Callable[[Member[ConnectionT]], bool]
) -> Iterator[tuple[str, str]]:
    for group, members in groups.items():
        for client_id, member in members.items():
            if is_wanted(member):
                yield group, client_id

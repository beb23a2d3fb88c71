"""Connected clients: producers and consumers by group, as registered by their heartbeats.

A client is identified by its client id and uses one connection at a time. A heartbeat over a new connection
replaces the old one. The broker removes a client when the client unregisters, when its connection closes, or
when it has sent no heartbeat for the expiry time. Subscriptions belong to the group: of the versions that its
members report for a topic, the newest one applies, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from store.clock import NS_PER_MS, Clock
from store.logs import get_logger

_log = get_logger(__name__)

CLIENT_TIMEOUT_MS = 10_000
"""Limit of a request that a broker sends to a client (RocketMQ Broker2Client)."""

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to one topic: an expression that selects messages, and its version."""

    topic: str
    expression: str
    version: int = 0
    expression_type: str = "TAG"
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Member(Generic[ConnectionT]):
    """A client as a member of one group."""

    client_id: str
    connection: ConnectionT
    last_heartbeat_ns: int


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionT]):
    """The members of a consumer group that are connected to this broker, and the group's subscriptions."""

    name: str
    members: dict[str, Member[ConnectionT]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The part of a client's heartbeat that concerns one consumer group."""

    group: str
    subscriptions: Mapping[str, Subscription]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class _Membership(NamedTuple):
    """A client's membership in a producer group or a consumer group."""

    is_producer: bool
    group: str
    client_id: str


class Clients(Generic[ConnectionT]):
    """The producers and consumers that are connected to one broker."""

    def __init__(self, clock: Clock, expiry_ms: int) -> None:
        self._clock = clock
        self._expiry_ns = expiry_ms * NS_PER_MS
        self._consumers: dict[str, ConsumerGroup[ConnectionT]] = {}
        self._producers: dict[str, dict[str, Member[ConnectionT]]] = {}
        # By connection, because thousands of connections may close at the same time: each must find its
        # clients without a search over all members.
        self._memberships: dict[ConnectionT, set[_Membership]] = {}
        self._on_subscription: list[Callable[[str], None]] = []

    def on_subscription(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the group's name whenever a heartbeat changes the group's subscriptions."""
        self._on_subscription.append(callback)

    def group(self, name: str) -> ConsumerGroup[ConnectionT] | None:
        """Return the consumer group, or None if no member is connected."""
        return self._consumers.get(name)

    def may_consume(self, group: str, topic: str) -> bool:
        """Return False if the group's connected members subscribe to topics, but not to this one.

        A group without connected members, or without subscriptions, may consume any topic.
        """
        known = self._consumers.get(group)
        return known is None or not known.subscriptions or topic in known.subscriptions

    def groups(self) -> Iterable[ConsumerGroup[ConnectionT]]:
        """Return all consumer groups that have connected members."""
        return self._consumers.values()

    def producers(self, group: str) -> Iterable[Member[ConnectionT]]:
        """Return the connected producers of a group."""
        return self._producers.get(group, {}).values()

    def producer_connection(self, client_id: str) -> ConnectionT | None:
        """Return the connection of a producer of any group, or None if it is not connected."""
        found = (members.get(client_id) for members in self._producers.values())
        return next((member.connection for member in found if member is not None), None)

    def producer_groups(self) -> Iterable[str]:
        """Return the names of all producer groups that have connected members."""
        return self._producers.keys()

    def register_producer(self, group: str, client_id: str, connection: ConnectionT) -> None:
        """Register a producer, or renew its registration."""
        members = self._producers.setdefault(group, {})
        self._add_member(members, _Membership(True, group, client_id), connection)

    def register_consumer(
        self, heartbeat: ConsumerHeartbeat, client_id: str, connection: ConnectionT
    ) -> bool:
        """Register a consumer, or renew its registration.

        Returns:
            True if the members or the subscriptions of the group have changed.
        """
        group = self._consumers.setdefault(heartbeat.group, ConsumerGroup(heartbeat.group))
        is_new = client_id not in group.members
        self._add_member(group.members, _Membership(False, heartbeat.group, client_id), connection)
        group.consume_type = heartbeat.consume_type
        group.message_model = heartbeat.message_model
        group.consume_from_where = heartbeat.consume_from_where
        before = group.subscriptions
        has_changed = self._subscribe(group, heartbeat.subscriptions, client_id) or is_new
        if group.subscriptions is not before:
            for callback in self._on_subscription:
                callback(heartbeat.group)
        return has_changed

    def unregister_producer(self, group: str, client_id: str) -> None:
        """Remove a producer from a group, if it is a member."""
        members = self._producers.get(group)
        if members is None:
            return
        self._remove_member(members, _Membership(True, group, client_id))
        if not members:
            del self._producers[group]

    def unregister_consumer(self, group: str, client_id: str) -> bool:
        """Remove a consumer from a group. Return True if it was a member."""
        known = self._consumers.get(group)
        if known is None or not self._remove_member(known.members, _Membership(False, group, client_id)):
            return False
        if not known.members:
            del self._consumers[group]
        return True

    def connection_closed(self, connection: ConnectionT) -> list[tuple[str, str]]:
        """Remove the clients of a closed connection. Return (group, client id) of each consumer."""
        removed = []
        for is_producer, group, client_id in sorted(self._memberships.get(connection, ())):
            if is_producer:
                self.unregister_producer(group, client_id)
            elif self.unregister_consumer(group, client_id):
                removed.append((group, client_id))
        return removed

    def expire(self) -> list[tuple[str, str]]:
        """Remove clients whose last heartbeat is older than the expiry time.

        Returns:
            (group, client id) of each removed consumer.
        """
        before_ns = self._clock.monotonic_ns() - self._expiry_ns
        return self._drop(lambda member: member.last_heartbeat_ns < before_ns)

    def _add_member(
        self, members: dict[str, Member[ConnectionT]], membership: _Membership, connection: ConnectionT
    ) -> None:
        """Set the client's connection and the time of its last heartbeat."""
        known = members.get(membership.client_id)
        if known is None or known.connection != connection:
            self._remove_member(members, membership)
            self._memberships.setdefault(connection, set()).add(membership)
        members[membership.client_id] = Member(membership.client_id, connection, self._clock.monotonic_ns())

    def _remove_member(self, members: dict[str, Member[ConnectionT]], membership: _Membership) -> bool:
        """Remove the client. Return True if it was a member."""
        member = members.pop(membership.client_id, None)
        if member is None:
            return False
        memberships = self._memberships[member.connection]
        memberships.discard(membership)
        if not memberships:
            del self._memberships[member.connection]
        return True

    def _drop(self, is_expired: Callable[[Member[ConnectionT]], bool]) -> list[tuple[str, str]]:
        for producer_group, client_id in list(_found(self._producers, is_expired)):
            self.unregister_producer(producer_group, client_id)
        consumers = {name: group.members for name, group in self._consumers.items()}
        removed = list(_found(consumers, is_expired))
        for consumer_group, client_id in removed:
            self.unregister_consumer(consumer_group, client_id)
        return removed

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


def _newer(known: Subscription | None, reported: Subscription) -> Subscription:
    # Members report at different times. An older version must not replace a newer one: pulls that name the
    # newer version would be refused.
    return reported if known is None or reported.version >= known.version else known


def _found(
    groups: Mapping[str, Mapping[str, Member[ConnectionT]]],
    is_selected: Callable[[Member[ConnectionT]], bool],
) -> Iterator[tuple[str, str]]:
    for group, members in groups.items():
        for client_id, member in members.items():
            if is_selected(member):
                yield group, client_id

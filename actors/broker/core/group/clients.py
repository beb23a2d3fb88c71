"""Connected clients: producers and consumers by group, as registered by their heartbeats.

A client is identified by its client id. As in RocketMQ, each connection over which heartbeats with this id
arrive is a registration of its own: containers with the same host address and process id have one client id,
and a client that reconnects may be back before its old connection is closed. A connection's registration ends
when it sends UNREGISTER_CLIENT, when it closes, or when it has sent no heartbeat for the expiry time; the
group loses the member with its last registration. Subscriptions belong to the group: of the versions that its
members report for a topic, the newest one applies, as in RocketMQ.

With access control, a client id in a group belongs to the user of its first registration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.wire.bodies.groups import CONSUME_POP
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

MEMBERSHIPS: Final = Bound(
    "memberships", 4_096, AtLimit.REFUSE, "Memberships in groups, of all client ids of one connection."
)
SUBSCRIPTIONS: Final = Bound(
    "subscription_characters",
    64 * 1024 * 1024,
    AtLimit.REFUSE,
    "Characters of topics, expressions and tags in the subscriptions of all groups.",
)
DIFFERENCES: Final = Bound(
    "subscription_differences", 100, AtLimit.EVICT, "Differing subscriptions of one group that were logged."
)
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
class GroupMember(Generic[ConnectionT]):
    """A client as a member of one group, with the time of the last heartbeat over each of its connections.

    `user` is the access key that registered it; None for a super user, and without access control.
    """

    client_id: str
    user: str | None
    heartbeats_ns: dict[ConnectionT, int] = field(default_factory=dict)
    is_shared: bool = False
    """Heartbeats arrive over several connections in turn, so several processes have this client id."""
    is_popping: bool = False
    """A consumer that only pops: it is not one of those that divide the queues of the group."""

    @property
    def connection(self) -> ConnectionT:
        """The connection of the latest heartbeat."""
        return next(reversed(self.heartbeats_ns))

    @property
    def last_heartbeat_ns(self) -> int:
        """The time of the latest heartbeat."""
        return self.heartbeats_ns[self.connection]


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionT]):
    """The members of a consumer group that are connected to this broker, and the group's subscriptions."""

    name: str
    members: dict[str, GroupMember[ConnectionT]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_chars: int = 0
    differences: Newest[int, None] = field(default_factory=lambda: Newest(DIFFERENCES), repr=False)

    def is_new_difference(self, expressions: Mapping[str, str]) -> bool:
        """Return True if these expressions were not logged yet: members repeat theirs every 30 s."""
        mark = hash(frozenset(expressions.items()))
        is_new = mark not in self.differences
        self.differences[mark] = None
        return is_new

    def connections(self) -> list[ConnectionT]:
        """Return the connections of all members."""
        return [connection for member in self.members.values() for connection in member.heartbeats_ns]

    def dividing(self) -> Iterable[GroupMember[ConnectionT]]:
        """Return the members that divide the group's queues: those that do not only pop."""
        return (member for member in self.members.values() if not member.is_popping)


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
        self._producers: dict[str, dict[str, GroupMember[ConnectionT]]] = {}
        # By connection, because thousands of connections may close at the same time: each must find its
        # clients without a search over all members.
        self._memberships: dict[ConnectionT, set[_Membership]] = {}
        self._on_subscription: list[Callable[[str], None]] = []
        self._subscription_chars = 0

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            MEMBERSHIPS.use(lambda: max(map(len, self._memberships.values()), default=0)),
            SUBSCRIPTIONS.use(lambda: self._subscription_chars),
            DIFFERENCES.use(
                lambda: max((len(each.differences) for each in self._consumers.values()), default=0)
            ),
        )

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

    def producers(self, group: str) -> Iterable[GroupMember[ConnectionT]]:
        """Return the connected producers of a group."""
        return self._producers.get(group, {}).values()

    def check_user(self, group: str, client_id: str, user: str | None) -> None:
        """Raise Refused if another user has registered this client id in the consumer group."""
        known = self._consumers.get(group)
        member = None if known is None else known.members.get(client_id)
        if member is not None:
            _check_user(member, group, user)

    def producers_with(self, client_id: str) -> list[GroupMember[ConnectionT]]:
        """Return the connected producers of all groups with this client id."""
        found = (members.get(client_id) for members in self._producers.values())
        return [member for member in found if member is not None]

    def producer_connections(self, group: str) -> list[ConnectionT]:
        """Return the connections of all producers of a group."""
        members = self.producers(group)
        return [connection for member in members for connection in member.heartbeats_ns]

    def producer_groups(self) -> Iterable[str]:
        """Return the names of all producer groups that have connected members."""
        return self._producers.keys()

    def register_producer(
        self, group: str, client_id: str, connection: ConnectionT, user: str | None = None
    ) -> None:
        """Register a producer, or renew its registration. Raises Refused if its id is another user's."""
        self._check_room(group, client_id, connection)
        members = self._producers.setdefault(group, {})
        self._add_member(members, _Membership(True, group, client_id), connection, user)

    def register_consumer(
        self,
        heartbeat: ConsumerHeartbeat,
        client_id: str,
        connection: ConnectionT,
        user: str | None = None,
    ) -> bool:
        """Register a consumer, or renew its registration.

        Raises Refused if its id is another user's, or if the subscriptions of all groups would have more than
        SUBSCRIPTIONS.limit characters.

        Returns:
            True if the members or the subscriptions of the group have changed.
        """
        self._check_room(heartbeat.group, client_id, connection)
        self._check_subscriptions(heartbeat)
        group = self._consumers.setdefault(heartbeat.group, ConsumerGroup(heartbeat.group))
        is_new = client_id not in group.members
        self._add_member(group.members, _Membership(False, heartbeat.group, client_id), connection, user)
        group.members[client_id].is_popping = heartbeat.consume_type == CONSUME_POP
        group.consume_type = heartbeat.consume_type
        group.message_model = heartbeat.message_model
        group.consume_from_where = heartbeat.consume_from_where
        before = group.subscriptions
        has_changed = self._subscribe(group, heartbeat.subscriptions, client_id) or is_new
        self._count_subscriptions(group, _characters(group.subscriptions))
        if group.subscriptions is not before:
            for callback in self._on_subscription:
                callback(heartbeat.group)
        return has_changed

    def unregister_producer(self, group: str, client_id: str, connection: ConnectionT | None = None) -> None:
        """End the registration of a producer over `connection`, or all of them if it is None."""
        members = self._producers.get(group)
        if members is None:
            return
        self._remove(members, _Membership(True, group, client_id), connection)
        if not members:
            del self._producers[group]

    def unregister_consumer(self, group: str, client_id: str, connection: ConnectionT | None = None) -> bool:
        """End the registration of a consumer over `connection`, or all of them if it is None.

        Returns:
            True if it was the last one: the client was a member and is no longer.
        """
        known = self._consumers.get(group)
        if known is None:
            return False
        has_left = self._remove(known.members, _Membership(False, group, client_id), connection)
        if not known.members:
            self._count_subscriptions(known, 0)
            del self._consumers[group]
        return has_left

    def connection_closed(self, connection: ConnectionT) -> list[tuple[str, str]]:
        """End the registrations of a closed connection.

        Returns:
            (group, client id) of each consumer that has no other connection.
        """
        removed = []
        for is_producer, group, client_id in sorted(self._memberships.get(connection, ())):
            if is_producer:
                self.unregister_producer(group, client_id, connection)
            elif self.unregister_consumer(group, client_id, connection):
                removed.append((group, client_id))
        return removed

    def expire(self) -> list[tuple[str, str]]:
        """End the registrations whose last heartbeat is older than the expiry time.

        Returns:
            (group, client id) of each consumer that has no other registration.
        """
        before_ns = self._clock.monotonic_ns() - self._expiry_ns
        for group, client_id, connection in list(_expired(self._producers, before_ns)):
            self.unregister_producer(group, client_id, connection)
        consumers = {name: group.members for name, group in self._consumers.items()}
        return [
            (group, client_id)
            for group, client_id, connection in list(_expired(consumers, before_ns))
            if self.unregister_consumer(group, client_id, connection)
        ]

    def _check_room(self, group: str, client_id: str, connection: ConnectionT) -> None:
        """Raise Refused if the connection has as many members of groups as it may have."""
        known = self._memberships.get(connection, ())
        if len(known) >= MEMBERSHIPS.limit and not any(
            _Membership(is_producer, group, client_id) in known for is_producer in (True, False)
        ):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"client {client_id[:100]!r} cannot join group {group[:100]!r}: its connection has the "
                f"limit of {MEMBERSHIPS.limit:,} members of groups: use a further connection",
            )

    def _check_subscriptions(self, heartbeat: ConsumerHeartbeat) -> None:
        known = self._consumers.get(heartbeat.group)
        others = self._subscription_chars - (0 if known is None else known.subscription_chars)
        if others + _characters(heartbeat.subscriptions) > SUBSCRIPTIONS.limit:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"group {heartbeat.group[:100]!r} cannot subscribe: the subscriptions of all groups of this "
                f"broker have {others:,} characters, the limit is {SUBSCRIPTIONS.limit:,}: use shorter "
                "expressions",
            )

    def _count_subscriptions(self, group: ConsumerGroup[ConnectionT], characters: int) -> None:
        self._subscription_chars += characters - group.subscription_chars
        group.subscription_chars = characters

    def _add_member(
        self,
        members: dict[str, GroupMember[ConnectionT]],
        membership: _Membership,
        connection: ConnectionT,
        user: str | None,
    ) -> None:
        """Record a heartbeat of the client over `connection`."""
        client_id = membership.client_id
        member = members.get(client_id)
        if member is None:
            member = members[client_id] = GroupMember(client_id, user)
        else:
            _check_user(member, membership.group, user)
        heartbeats_ns = member.heartbeats_ns
        if connection not in heartbeats_ns:
            self._memberships.setdefault(connection, set()).add(membership)
        elif member.connection != connection:
            # A client that has reconnected sends nothing more over its old connection.
            _warn_shared(member, membership.group)
            del heartbeats_ns[connection]  # so that the latest heartbeat is last
        heartbeats_ns[connection] = self._clock.monotonic_ns()

    def _remove(
        self,
        members: dict[str, GroupMember[ConnectionT]],
        membership: _Membership,
        connection: ConnectionT | None,
    ) -> bool:
        """End registrations of a client. Return True if the client was a member and has none left."""
        member = members.get(membership.client_id)
        if member is None:
            return False
        for each in list(member.heartbeats_ns) if connection is None else [connection]:
            if member.heartbeats_ns.pop(each, None) is not None:
                memberships = self._memberships[each]
                memberships.discard(membership)
                if not memberships:
                    del self._memberships[each]
        if member.heartbeats_ns:
            return False
        del members[membership.client_id]
        return True

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
        if before and before != now and len(group.members) > 1 and group.is_new_difference(now):
            _log.warning(
                "subscriptions_differ", group=group.name, client_id=client_id, before=before, now=now
            )
        group.subscriptions = merged
        return before != now


def _newer(known: Subscription | None, reported: Subscription) -> Subscription:
    # Members report at different times. An older version must not replace a newer one: pulls that name the
    # newer version would be refused.
    return reported if known is None or reported.version >= known.version else known


def _characters(subscriptions: Mapping[str, Subscription]) -> int:
    return sum(
        len(topic) + len(each.expression) + sum(map(len, each.tags)) for topic, each in subscriptions.items()
    )


def _check_user(member: GroupMember[ConnectionT], group: str, user: str | None) -> None:
    if user is not None and member.user != user:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"client id {member.client_id[:100]!r} in group {group[:100]!r} belongs to another user: give "
            "this client another instance name",
        )


def _warn_shared(member: GroupMember[ConnectionT], group: str) -> None:
    if not member.is_shared:  # once per member, not with each heartbeat
        member.is_shared = True
        _log.warning(
            "client_id_shared",
            group=group,
            client_id=member.client_id,
            peers=[str(connection) for connection in member.heartbeats_ns],
            effect="all of them consume the same queues",
            remedy="give each process its own instance name",
        )


def _expired(
    groups: Mapping[str, Mapping[str, GroupMember[ConnectionT]]], before_ns: int
) -> Iterator[tuple[str, str, ConnectionT]]:
    for group, members in groups.items():
        for client_id, member in members.items():
            for connection, heartbeat_ns in member.heartbeats_ns.items():
                if heartbeat_ns < before_ns:
                    yield group, client_id, connection

"""Subscriptions: which client of a lite group receives which lite topics.

    group, client id ──► LiteClient: names, events
    topic, name      ──► the clients that subscribe it: one, or a tuple of several

A lite topic that is only subscribed costs its name and two entries of tables, and no object that the garbage
collector looks at. The tables are in memory: clients send all of their names every 30 s (COMPLETE_ADD).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from actors.bounds import AtLimit, Bound, Use
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock

QUOTA_TOLERANCE: Final = 300
"""RocketMQ's proxy accepts so many names more than the quota of a client, which the client checks itself."""

SUBSCRIPTIONS: Final = Bound(
    "lite_subscriptions", 100_000, AtLimit.REFUSE, "Lite topics that clients subscribe, of all clients."
)
CLIENTS: Final = Bound("lite_clients", 20_000, AtLimit.REFUSE, "Clients that subscribe lite topics.")


class LiteLimits(Protocol):
    """The settings that limit lite subscriptions."""

    @property
    def max_lite_subscriptions(self) -> int:
        """The largest number of lite topics that all clients together subscribe."""

    @property
    def lite_subscription_timeout_ms(self) -> int:
        """How long a client keeps its lite topics without synchronizing them."""


class LiteGroup(NamedTuple):
    """The settings of a lite group, from the attributes of the group."""

    name: str
    topic: str
    is_exclusive: bool = False
    resets_on_takeover: bool = False
    resets_on_removal: bool = False
    client_quota: int = 2000
    events_max: int = 400
    is_wildcard: bool = False


class LiteClient:
    """One client of a lite group: what it subscribes, and the lite topics that may have messages for it."""

    __slots__ = (
        "answered",
        "attempt_id",
        "channel",
        "client_id",
        "cursor",
        "events",
        "events_max",
        "group",
        "is_behind",
        "is_wildcard",
        "names",
        "renewed_ns",
        "stalled_ns",
        "topic",
    )

    def __init__(self, group: LiteGroup, client_id: str) -> None:
        self.group = group.name
        self.topic = group.topic
        self.client_id = client_id
        self.is_wildcard = group.is_wildcard
        self.events_max = group.events_max
        self.names: set[str] = set()
        self.channel: object = None
        """The connection over which the client was synchronized last."""
        self.renewed_ns = 0
        self.events: dict[str, int] = {}
        """Names of lite topics that may have messages, each with the monotonic time of the event."""
        self.stalled_ns = 0
        """Until this monotonic time, events go to other clients, because this one has not taken its own."""
        self.is_behind = False
        """True if events were dropped, because the queues of all clients were full."""
        self.cursor: Iterator[str] | None = None
        """The names that are still to be looked at after events were dropped."""
        self.attempt_id = ""
        self.answered: tuple[str, ...] = ()
        """The lite topics in the last response, which the same attempt gets again."""


class Change(NamedTuple):
    """The effect of a request."""

    client: LiteClient | None
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    taken: Sequence[tuple[LiteClient, str]] = ()
    """The lite topics that other clients have lost: they have to be notified."""
    refused: Sequence[str] = ()
    """Lite topics that another client holds exclusively: this client has to be notified again."""


Holder = LiteClient | tuple[LiteClient, ...]


class Subscriptions:
    """The lite subscriptions of one broker."""

    def __init__(self, clock: Clock, limits: LiteLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._clients: dict[tuple[str, str], LiteClient] = {}
        self._holders: defaultdict[str, dict[str, Holder]] = defaultdict(dict)
        self._wildcards: defaultdict[str, dict[str, tuple[LiteClient, ...]]] = defaultdict(dict)
        self._count = 0

    @property
    def count(self) -> int:
        """The number of subscribed lite topics, of all clients."""
        return self._count

    @property
    def clients(self) -> Collection[LiteClient]:
        """All clients, as a live view."""
        return self._clients.values()

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        limits = self._limits
        return (
            SUBSCRIPTIONS.use(lambda: self._count, lambda: limits.max_lite_subscriptions),
            CLIENTS.use(lambda: len(self._clients)),
        )

    def client(self, group: str, client_id: str) -> LiteClient | None:
        """Return a client, or None if it has not subscribed."""
        return self._clients.get((group, client_id))

    def groups_of(self, topic: str, name: str) -> Iterator[tuple[str, Sequence[LiteClient]]]:
        """Yield each group that receives a lite topic, with its clients that may."""
        holder = self._holders[topic].get(name) if topic in self._holders else None
        if isinstance(holder, LiteClient):
            yield holder.group, (holder,)
        elif holder is not None:
            by_group: defaultdict[str, list[LiteClient]] = defaultdict(list)
            for each in holder:
                by_group[each.group].append(each)
            yield from by_group.items()
        if topic in self._wildcards:
            yield from self._wildcards[topic].items()

    def clients_of(self, group: str, topic: str, name: str) -> Sequence[LiteClient]:
        """Return the clients of one group that receive a lite topic."""
        return next((found for each, found in self.groups_of(topic, name) if each == group), ())

    def add(self, group: LiteGroup, client_id: str, names: Collection[str], channel: object) -> Change:
        """Subscribe more lite topics (PARTIAL_ADD). Of an exclusive group, other clients lose them.

        Raises Refused if the group receives all lite topics, or a quota is exceeded.
        """
        if group.is_wildcard:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"subscribe lite operation is not supported for this group: {group.name} has the attribute "
                "lite.sub.wildcard and receives all lite topics",
            )
        known = self._current(group, client_id)
        names = dict.fromkeys(names)
        added = [each for each in names if known is None or each not in known.names]
        self._check_room(group, known, len(added), 0)
        client = self._renewed(group, client_id, channel)
        taken = [(other, name) for name in names for other in self._others(group, client, name)]
        for other, name in taken:
            self._remove(other, name)
        for name in added:
            self._insert(client, name)
        return Change(client, added, taken=taken)

    def replace(self, group: LiteGroup, client_id: str, names: Collection[str], channel: object) -> Change:
        """Subscribe exactly these lite topics (COMPLETE_ADD). Of an exclusive group, others keep theirs.

        Raises Refused if a quota is exceeded.
        """
        known = self._current(group, client_id)
        wanted = {} if group.is_wildcard else dict.fromkeys(names)
        held: Collection[str] = () if known is None else known.names
        new = [each for each in wanted if each not in held]
        old = [each for each in held if each not in wanted]
        self._check_room(group, known, len(new), len(old))
        client = self._renewed(group, client_id, channel)
        refused = {name for name in new if self._others(group, client, name)}
        added = [name for name in new if name not in refused]
        for name in old:
            self._remove(client, name)
        for name in added:
            self._insert(client, name)
        return Change(client, added, old, refused=sorted(refused))

    def remove(self, group: str, client_id: str, names: Iterable[str], channel: object) -> Change:
        """Unsubscribe some lite topics (PARTIAL_REMOVE)."""
        client = self._clients.get((group, client_id))
        if client is None:
            return Change(None)
        client.channel, client.renewed_ns = channel, self._clock.monotonic_ns()
        removed = [each for each in names if each in client.names]
        for name in removed:
            self._remove(client, name)
        return Change(client, removed=removed)

    def remove_client(self, client: LiteClient) -> Change:
        """Remove a client with all that it subscribes (COMPLETE_REMOVE, expiry)."""
        removed = list(client.names)
        for name in removed:
            self._remove(client, name)
        if client.is_wildcard:
            groups = self._wildcards[client.topic]
            left = tuple(each for each in groups.get(client.group, ()) if each is not client)
            if left:
                groups[client.group] = left
            else:
                groups.pop(client.group, None)
        self._clients.pop((client.group, client.client_id), None)
        return Change(client, removed=removed)

    def expired(self) -> list[LiteClient]:
        """Return the clients that have not synchronized their subscriptions in time."""
        before_ns = self._clock.monotonic_ns() - self._limits.lite_subscription_timeout_ms * NS_PER_MS
        return [each for each in self._clients.values() if each.renewed_ns < before_ns]

    def clear(self) -> None:
        """Forget everything: another replica serves the clients now."""
        for table in (self._clients, self._holders, self._wildcards):
            table.clear()
        self._count = 0

    def _current(self, group: LiteGroup, client_id: str) -> LiteClient | None:
        """Return a client, or None if it is new or the settings of its group make it a new one."""
        client = self._clients.get((group.name, client_id))
        if client is None or (client.topic, client.is_wildcard) == (group.topic, group.is_wildcard):
            return client
        self.remove_client(client)
        return None

    def _renewed(self, group: LiteGroup, client_id: str, channel: object) -> LiteClient:
        key = (group.name, client_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = LiteClient(group, client_id)
            if client.is_wildcard:
                groups = self._wildcards[group.topic]
                groups[group.name] = (*groups.get(group.name, ()), client)
        client.events_max = group.events_max
        client.channel, client.renewed_ns = channel, self._clock.monotonic_ns()
        return client

    def _others(self, group: LiteGroup, client: LiteClient, name: str) -> Sequence[LiteClient]:
        """Return the other clients of an exclusive group that hold a lite topic."""
        if not group.is_exclusive:
            return ()
        holders = self.clients_of(group.name, group.topic, name)
        return [each for each in holders if each is not client]

    def _check_room(self, group: LiteGroup, client: LiteClient | None, added: int, removed: int) -> None:
        if client is None and len(self._clients) >= CLIENTS.limit:
            raise _quota(f"{len(self._clients):,} clients subscribe lite topics", f"{CLIENTS.limit:,}")
        count = self._count + added - removed
        limit = self._limits.max_lite_subscriptions
        if added and count > limit:
            raise _quota(f"all clients would subscribe {count:,} lite topics", f"{limit:,}")
        count = (len(client.names) if client is not None else 0) + added - removed
        limit = group.client_quota + QUOTA_TOLERANCE
        if added and group.client_quota >= 0 and count > limit:
            raise _quota(
                f"a client of group {group.name} would subscribe {count:,} lite topics",
                f"{limit:,} (lite.sub.client.quota {group.client_quota:,} + {QUOTA_TOLERANCE})",
            )

    def _insert(self, client: LiteClient, name: str) -> None:
        holders = self._holders[client.topic]
        holder = holders.get(name)
        if holder is None:
            holders[name] = client
        else:
            holders[name] = (*(holder if isinstance(holder, tuple) else (holder,)), client)
        client.names.add(name)
        self._count += 1

    def _remove(self, client: LiteClient, name: str) -> None:
        holders = self._holders[client.topic]
        holder = holders.get(name)
        left = [each for each in holder if each is not client] if isinstance(holder, tuple) else []
        if len(left) > 1:
            holders[name] = tuple(left)
        elif left:
            holders[name] = left[0]
        else:
            del holders[name]
        client.names.discard(name)
        self._count -= 1


def _quota(fact: str, limit: str) -> Refused:
    return Refused(
        ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        f"{fact}, and the limit is {limit}: unsubscribe lite topics, or use more brokers",
    )

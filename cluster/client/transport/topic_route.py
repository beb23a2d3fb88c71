"""TopicRoute: the queues of a topic and the addresses of its brokers. Pure functions, no I/O.

A broker that restarts is missing from the route for some seconds. With fewer queues the hash of a key would
select another queue, which would break the order of the key's messages. Therefore `keep_departed` keeps the
queues of a missing broker for a while. An order topic has a fixed list of queues (`order_conf`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from actors.wire.bodies.routes import MASTER_ID, PERM_READ, PERM_WRITE, TopicRouteData
from cluster.client.errors import BrokerUnreachable
from store.message.message_queue import MessageQueue

Replica = Literal["master", "any"]
"""Which replicas of its brokers a read uses: "any" is the master, or a slave if the route has no master."""
REPLICAS: tuple[Replica, ...] = get_args(Replica)


@dataclass(frozen=True, slots=True)
class QueueShare:
    """The queues that one broker has of a topic.

    Attributes:
        broker_name: Name of the broker.
        read_queues: Number of queues that consumers read.
        write_queues: Number of queues that producers write.
        perm: RocketMQ permission bits.
        left_at_ms: Monotonic time at which the broker left the route; None while it is in the route.
    """

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    left_at_ms: int | None = None

    @property
    def is_readable(self) -> bool:
        """Return True if consumers may read the queues."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Return True if producers may write the queues."""
        return bool(self.perm & PERM_WRITE)


@dataclass(frozen=True)
class TopicRoute:
    """The route of one topic.

    The lists of queues are computed at first use and cached, because a topic may have tens of thousands of
    queues and every send needs a list.

    Attributes:
        topic: The topic.
        shares: The queues of each broker, sorted by broker name.
        addresses: `addresses[broker_name][broker_id]` is `"host:port"`.
        order_conf: Queues of an order topic, as `broker-a:4;broker-b:4`; else empty.
        creates: True if the topic did not exist: the first send creates it.
    """

    topic: str
    shares: tuple[QueueShare, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    order_conf: str = ""
    creates: bool = False

    @cached_property
    def writable(self) -> tuple[MessageQueue, ...]:
        """The queues for sends that may use any queue; neighbours in the sequence are on different brokers.

        Queues of brokers that left the route are excluded, unless all brokers left it: a nameserver that has
        just started knows no broker yet, while the brokers are running.
        """
        known = [share for share in self._shares_to_write if self.master(share.broker_name)]
        present = [share for share in known if share.left_at_ms is None]
        return _interleaved(_queues(self.topic, present or known, writing=True))

    @cached_property
    def keyed(self) -> tuple[MessageQueue, ...]:
        """The queues among which sharding keys choose, including those of brokers that left recently."""
        of_order = _of_order_conf(self.topic, self.order_conf)
        return of_order or _queues(self.topic, self._shares_to_write, writing=True)

    @cached_property
    def readable(self) -> tuple[MessageQueue, ...]:
        """The queues that consumers read."""
        return _queues(self.topic, [s for s in self.shares if s.is_readable], writing=False)

    @property
    def has_one_group(self) -> bool:
        """True if all writable queues are of one broker that has replicas: one may become its next master."""
        names = [share.broker_name for share in self._shares_to_write]
        return len(names) == 1 and any(each != MASTER_ID for each in self.replicas(names[0]))

    @property
    def _shares_to_write(self) -> list[QueueShare]:
        return [share for share in self.shares if share.is_writable]

    @cached_property
    def _share_of(self) -> dict[str, QueueShare]:
        return {share.broker_name: share for share in self.shares}

    def why_missing(self, queue: MessageQueue) -> str:
        """Return why no broker of the route has `queue`, else an empty text.

        The route contains brokers that restart, unless they were down when it was first fetched.
        """
        share = self._share_of.get(queue.broker_name)
        if share is None:
            brokers = ", ".join(self.brokers())
            return (
                f"broker {queue.broker_name!r} is not in the route of topic {self.topic!r}: it has {brokers}"
            )
        count = max(share.read_queues, share.write_queues)
        if queue.queue_id >= count:
            return (
                f"topic {self.topic!r} has no queue {queue.queue_id} on broker {queue.broker_name!r}: "
                f"its queues there are 0 to {count - 1}"
            )
        return ""

    def master(self, broker_name: str) -> str | None:
        """Return the address of the broker's master (broker id 0), or None if it is unknown."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def replicas(self, broker_name: str) -> Sequence[int]:
        """Return the ids of the broker's known replicas, ascending; the master's is 0."""
        return sorted(self.addresses.get(broker_name, ()))

    def replica(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of a replica that serves reads and groups: this one, else that of the lowest id.

        Returns None if no replica is known.
        """
        known = self.addresses.get(broker_name, {})
        return known.get(broker_id) or (known[min(known)] if known else None)

    def brokers(self) -> list[str]:
        """Return the sorted names of the brokers that have queues of the topic."""
        return sorted(share.broker_name for share in self.shares)

    def masters(self) -> dict[str, str]:
        """Return the known master addresses by broker name, sorted by name."""
        return {name: address for name in self.brokers() if (address := self.master(name))}

    def all_masters(self) -> dict[str, str]:
        """Return the same as `masters`, for requests whose result would be incomplete without one of them.

        Raises BrokerUnreachable if a broker in the route has only slaves.
        """
        for share in self.shares:
            if share.left_at_ms is None and self.master(share.broker_name) is None:
                raise BrokerUnreachable(
                    f"broker {share.broker_name} has no master: start it again, or promote one of its slaves"
                )
        return self.masters()

    def all_replicas(self) -> dict[str, str]:
        """Return the address of each broker's master, or of the slave with the lowest id if it has no master.

        Raises BrokerUnreachable if a broker in the route has no replica.
        """
        found = {name: self.replica(name) for name in self.brokers()}
        for name, address in found.items():
            if address is None:
                raise BrokerUnreachable(f"broker {name} has neither a master nor a slave: start it again")
        return {name: address for name, address in found.items() if address}


def route_of(topic: str, data: TopicRouteData) -> TopicRoute:
    """Return the route described by the response of a nameserver."""
    shares = sorted(
        (
            QueueShare(queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm)
            for queues in data.queue_datas
        ),
        key=lambda share: share.broker_name,
    )
    addresses = {broker.broker_name: broker.broker_addrs for broker in data.broker_datas}
    return TopicRoute(topic, tuple(shares), addresses, data.order_topic_conf or "")


def keep_departed(before: TopicRoute | None, now: TopicRoute, now_ms: int, sticky_ms: int) -> TopicRoute:
    """Return `now` plus the brokers of `before` that left the route less than `sticky_ms` ago.

    The kept brokers' queues are part of `keyed` and `readable` and their addresses stay known; `writable`
    excludes them while another broker is in the route.
    """
    if before is None:
        return now
    present = {share.broker_name for share in now.shares}
    kept = []
    for share in before.shares:
        if share.broker_name in present:
            continue
        left_at_ms = now_ms if share.left_at_ms is None else share.left_at_ms
        if now_ms - left_at_ms < sticky_ms:
            kept.append(
                QueueShare(share.broker_name, share.read_queues, share.write_queues, share.perm, left_at_ms)
            )
    if not kept:
        return now
    addresses = {share.broker_name: before.addresses.get(share.broker_name, {}) for share in kept}
    shares = sorted([*now.shares, *kept], key=lambda share: share.broker_name)
    return replace(now, shares=tuple(shares), addresses={**addresses, **now.addresses})


def _queues(topic: str, shares: Sequence[QueueShare], *, writing: bool) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic, share.broker_name, queue_id)
        for share in shares
        for queue_id in range(share.write_queues if writing else share.read_queues)
    )


def _interleaved(queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    # Round robin over a-0 b-0 a-1 b-1 …: neighbours are on different brokers, which spreads the load evenly.
    return tuple(sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name)))


def _of_order_conf(topic: str, order_conf: str) -> tuple[MessageQueue, ...]:
    """Return the queues listed in the order configuration `broker-a:4;broker-b:4`."""
    queues: list[MessageQueue] = []
    for part in filter(None, order_conf.split(";")):
        broker_name, _, count = part.rpartition(":")
        if broker_name and count.isdigit():
            queues.extend(MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count)))
    return tuple(queues)

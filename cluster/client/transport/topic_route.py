"""TopicRoute: where to send, what to consume and which address to dial. Pure.

A broker that is restarting leaves the nameserver's answer for some seconds. Keyed sends must not notice:
with fewer queues, the hash would put a key's next message in another queue than its last. So `follow`
remembers the queues of a broker that has left, for a while; an order topic names its queues for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from actors.remoting.bodies.routes import MASTER_ID, PERM_READ, PERM_WRITE, TopicRouteData
from store.message.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueShare:
    """What one broker has of a topic. `left_at_ms`: when it vanished from the routes (monotonic), None while
    present.
    """

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    left_at_ms: int | None = None

    @property
    def is_readable(self) -> bool:
        """Return True if consumers may read."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Return True if producers may write."""
        return bool(self.perm & PERM_WRITE)


@dataclass(frozen=True)
class TopicRoute:
    """One topic's queues and its brokers' addresses: `addresses[broker_name][broker_id] = "host:port"`.

    The lists of queues are computed once, at first use: some are needed at every send, and a topic may have
    tens of thousands.
    """

    topic: str
    shares: tuple[QueueShare, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    order_conf: str = ""

    @cached_property
    def writable(self) -> tuple[MessageQueue, ...]:
        """The queues to send to now, neighbours on different brokers.

        If all brokers have left the routes at once, those that left: nameservers that have just started
        know no broker yet, and the brokers still serve.
        """
        known = [share for share in self._shares_to_write if self.master(share.broker_name)]
        present = [share for share in known if share.left_at_ms is None]
        return _interleaved(_queues(self.topic, present or known, writing=True))

    @cached_property
    def keyed(self) -> tuple[MessageQueue, ...]:
        """The queues that keys are dealt to, including those of brokers that left a short time ago."""
        of_order = _of_order_conf(self.topic, self.order_conf)
        return of_order or _queues(self.topic, self._shares_to_write, writing=True)

    @cached_property
    def readable(self) -> tuple[MessageQueue, ...]:
        """The queues to read."""
        return _queues(self.topic, [s for s in self.shares if s.is_readable], writing=False)

    @property
    def _shares_to_write(self) -> list[QueueShare]:
        return [share for share in self.shares if share.is_writable]

    def master(self, broker_name: str) -> str | None:
        """Return the address of the broker's master (id 0), None if it is unknown."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def brokers(self) -> list[str]:
        """Return the names of all brokers that have the topic, sorted."""
        return sorted(share.broker_name for share in self.shares)

    def masters(self) -> dict[str, str]:
        """Return the known master addresses of the topic's brokers by name, in the order of names."""
        return {name: address for name in self.brokers() if (address := self.master(name))}


def route_of(topic: str, data: TopicRouteData) -> TopicRoute:
    """Return the route that a nameserver's response describes."""
    shares = sorted(
        (
            QueueShare(queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm)
            for queues in data.queue_datas
        ),
        key=lambda share: share.broker_name,
    )
    addresses = {broker.broker_name: broker.broker_addrs for broker in data.broker_datas}
    return TopicRoute(topic, tuple(shares), addresses, data.order_topic_conf or "")


def lacks(now: TopicRoute, before: TopicRoute | None) -> bool:
    """Return True if a broker of `before` is not in `now`, or has no address there."""
    if before is None:
        return False
    present = {share.broker_name for share in now.shares if now.master(share.broker_name)}
    return any(share.broker_name not in present for share in before.shares)


def union(routes: Sequence[TopicRoute]) -> TopicRoute:
    """Join the routes of several nameservers; of each broker the first route that has it counts."""
    shares: dict[str, QueueShare] = {}
    addresses: dict[str, Mapping[int, str]] = {}
    for route in reversed(routes):
        shares |= {share.broker_name: share for share in route.shares}
        addresses |= route.addresses
    order_conf = next((route.order_conf for route in routes if route.order_conf), "")
    return TopicRoute(
        routes[0].topic, tuple(shares[broker_name] for broker_name in sorted(shares)), addresses, order_conf
    )


def follow(before: TopicRoute | None, now: TopicRoute, now_ms: int, sticky_ms: int) -> TopicRoute:
    """Return `now`, with the brokers that it lacks kept from `before` until they left `sticky_ms` ago.

    Their queues stay in `keyed` and `readable` and their addresses stay known; `writable` leaves them out
    while another broker is present.
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
    return TopicRoute(now.topic, tuple(shares), {**addresses, **now.addresses}, now.order_conf)


def _queues(topic: str, shares: Sequence[QueueShare], *, writing: bool) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic, share.broker_name, queue_id)
        for share in shares
        for queue_id in range(share.write_queues if writing else share.read_queues)
    )


def _interleaved(queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    # Round robin over a-0 b-0 a-1 b-1 …: neighbours are on different brokers, which share the load evenly.
    return tuple(sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name)))


def _of_order_conf(topic: str, order_conf: str) -> tuple[MessageQueue, ...]:
    """Return the queues that an order topic's `broker-a:4;broker-b:4` names."""
    queues: list[MessageQueue] = []
    for part in filter(None, order_conf.split(";")):
        broker_name, _, count = part.rpartition(":")
        if broker_name and count.isdigit():
            queues.extend(MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count)))
    return tuple(queues)

"""The two protocols by which a group member gets its queues.

    SYNC_GROUP ── a broker supports it ──→ RebalancerProtocol
        └── no broker supports it ───────→ SelfAssigningProtocol

RebalancerProtocol: the group's rebalancer assigns queues under generations. If any member of the group
assigns queues to itself (as Java clients do), or if the rebalancer has been unavailable for
`self_assign_after_ms`, this member also assigns queues to itself.

SelfAssigningProtocol: RocketMQ's brokers have no rebalancer. Each member applies the group's strategy to the
member list of a broker. No message reports that the previous owner of a queue has released it. Therefore a
member waits `HANDOVER_MS` before it consumes a new queue, and commits every `SELF_ASSIGNING_COMMIT_MS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from actors.strategies import make_strategy
from actors.wire.bodies.groups import AssignedQueue, GroupMembers, SyncGroupReply, SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerGroupHeader
from cluster.client.config import ConsumerConfig
from cluster.client.errors import BrokerRefused, BrokerUnreachable, ClientError, SubscriptionDiffers
from cluster.client.group.membership import Membership
from cluster.client.message_selector import MessageSelector
from cluster.client.transport.instance import ClientInstance
from store.message.message_queue import MessageQueue

# The response code of a broker whose rebalancer does not respond.
REBALANCER_UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE

HANDOVER_MS = 500
SELF_ASSIGNING_COMMIT_MS = 500

DEFAULT_STRATEGY = "averagely"


class GroupProtocol(Protocol):
    """Protocol by which a session gets its queues from the group."""

    @property
    def sync_interval_ms(self) -> int:
        """Return the time until the next `sync`, in ms."""

    @property
    def commit_interval_ms(self) -> int:
        """Return the time between two commits of consumed offsets, in ms."""

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply | None:
        """Return this member's assignment, or None if the group does not list this member yet.

        Args:
            is_leaving: True if this member is about to leave and accepts no new queues.

        Raises:
            ClientError: No broker responded, or the group refuses this member.
        """

    async def leave(self) -> None:
        """Report to the group that this member has left. Raises ClientError if no broker responds."""


def broker_addresses(instance: ClientInstance, topics: Iterable[str]) -> list[str]:
    """Return the addresses of the brokers of `topics`, without topics that have no cached route.

    A broker without a master is represented by a slave.
    """
    addresses: set[str] = set()
    for topic in topics:
        route = instance.routes.peek(topic)
        if route is not None:
            addresses.update(filter(None, map(route.replica, route.brokers())))
    return sorted(addresses)


class SelfAssigningProtocol:
    """Assigns queues by applying the group's strategy to the member list of a broker."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ConsumerConfig,
        membership: Membership,
        subscriptions: Mapping[str, MessageSelector],
    ) -> None:
        self._instance = instance
        self._config = config
        self._membership = membership
        self._subscriptions = subscriptions
        self._begin_at_ms: dict[MessageQueue, int] = {}
        self._is_handing_over = False

    @property
    def sync_interval_ms(self) -> int:
        """Return the time until the next `sync` in ms; at most `HANDOVER_MS` during a handover."""
        interval_ms = self._config.sync_interval_ms
        return min(interval_ms, HANDOVER_MS) if self._is_handing_over else interval_ms

    @property
    def commit_interval_ms(self) -> int:
        """Return the time between two commits, in ms."""
        return min(self._config.commit_interval_ms, SELF_ASSIGNING_COMMIT_MS)

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply | None:
        """Assign queues with the member list of the first broker that responds."""
        members = await self._members()
        if self._instance.client_id not in members:
            return None
        return self.share(members, self._membership.generation)

    async def leave(self) -> None:
        """Do nothing. The session's UNREGISTER_CLIENT request removes this member from the brokers."""

    def share(self, members: Iterable[str], generation: int) -> SyncGroupReply:
        """Apply the strategy to `members` for each topic and return the queues of this member.

        A queue that this member does not hold yet is left out for `HANDOVER_MS` after its first assignment,
        to give the previous owner time to commit and stop.
        """
        ordered = sorted(members)
        strategy = make_strategy(self._config.strategy or DEFAULT_STRATEGY)
        mine: list[MessageQueue] = []
        for topic in self._subscriptions:
            route = self._instance.routes.peek(topic)
            if route is not None:
                mine.extend(strategy.allocate(self._instance.client_id, sorted(route.readable), ordered))
        now_ms = self._instance.now_ms()
        self._begin_at_ms = {
            queue: self._begin_at_ms.get(queue, now_ms + HANDOVER_MS)
            for queue in mine
            if self._membership.generation_of(queue) is None
        }
        ready = [queue for queue in mine if self._begin_at_ms.get(queue, now_ms) <= now_ms]
        self._is_handing_over = len(ready) < len(mine)
        return SyncGroupReply(generation, [AssignedQueue(queue, 0) for queue in ready], members=ordered)

    async def _members(self) -> list[str]:
        header = ConsumerGroupHeader(self._config.group)
        for address in broker_addresses(self._instance, self._subscriptions):
            try:
                response = await self._instance.invoke(
                    address, RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_ext())
                )
            except ClientError:
                continue
            return list(GroupMembers.decode(response.body).members)
        return []


class RebalancerProtocol:
    """Exchanges SYNC_GROUP with the group's rebalancer, through any broker."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ConsumerConfig,
        membership: Membership,
        subscriptions: Mapping[str, MessageSelector],
        averaging: SelfAssigningProtocol,
    ) -> None:
        self._instance = instance
        self._config = config
        self._membership = membership
        self._subscriptions = subscriptions
        self._averaging = averaging
        self._is_averaging = False
        self._unavailable_since_ms: int | None = None
        self._broker = ""

    @property
    def sync_interval_ms(self) -> int:
        """Return the time until the next `sync`, in ms."""
        return self._averaging.sync_interval_ms if self._is_averaging else self._config.sync_interval_ms

    @property
    def commit_interval_ms(self) -> int:
        """Return the time between two commits, in ms."""
        return self._averaging.commit_interval_ms if self._is_averaging else self._config.commit_interval_ms

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply | None:
        """Return the rebalancer's assignment, or a self-assigned one if the group requires it."""
        try:
            reply = await self._exchange(is_leaving=is_leaving)
        except BrokerRefused as error:
            if error.code != REBALANCER_UNAVAILABLE or not self._has_been_unavailable():
                raise
            self._is_averaging = True
            return await self._averaging.sync(is_leaving=is_leaving)
        self._unavailable_since_ms = None
        self._is_averaging = reply.is_self_assigning
        return self._averaging.share(reply.members, reply.generation) if self._is_averaging else reply

    async def leave(self) -> None:
        """Report that this member has left. Queues it has not released become free when its lease expires."""
        await self._exchange(is_leaving=True)

    def _has_been_unavailable(self) -> bool:
        """Record a failed sync. Return True if syncs have been failing for `self_assign_after_ms`."""
        now_ms = self._instance.now_ms()
        self._membership.extend_lease(now_ms)
        if self._unavailable_since_ms is None:
            self._unavailable_since_ms = now_ms
            return False
        return now_ms - self._unavailable_since_ms >= self._config.self_assign_after_ms

    async def _exchange(self, *, is_leaving: bool) -> SyncGroupReply:
        """Send SYNC_GROUP to each broker in turn until one responds, the last successful broker first.

        If no broker responds, raise a broker's error response if there was one, else the last error.
        """
        config = self._config
        body = SyncGroupRequest(
            config.group,
            self._instance.client_id,
            self._membership.generation,
            {topic: str(selector) for topic, selector in self._subscriptions.items()},
            self._membership.owned(),
            config.strategy,
            config.lease_ms,
            self._membership.lease_left_ms(self._instance.now_ms()),
            is_leaving,
            config.allow_subscription_change,
        ).encode()
        topics = ", ".join(sorted(self._subscriptions))
        failure: ClientError = BrokerUnreachable(
            f"no broker is known for the subscribed topics {topics}: create them, or check the nameservers"
        )
        addresses = broker_addresses(self._instance, self._subscriptions)
        for address in sorted(addresses, key=lambda address: address != self._broker):
            try:
                response = await self._instance.invoke(
                    address, RemotingCommand(RayMQRequestCode.SYNC_GROUP, body=body)
                )
            except SubscriptionDiffers:
                raise
            except ClientError as error:
                # An error response about the rebalancer is more useful than "unreachable" of another broker.
                failure = failure if isinstance(failure, BrokerRefused) else error
                continue
            self._broker = address
            return SyncGroupReply.decode(response.body)
        raise failure

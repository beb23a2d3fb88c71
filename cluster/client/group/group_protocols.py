"""The two ways in which a member learns its queues; a session uses one of them for as long as it lives.

    SYNC_GROUP ── a broker supports it ──→ RebalancerProtocol
        └── no broker does ──────────────→ SelfAssigningProtocol

RebalancerProtocol: the group's rebalancer assigns queues under generations. If a member of the group assigns
itself (Java's clients), or the rebalancer has been unavailable for `self_assign_after_ms`, the member assigns
itself as well.

SelfAssigningProtocol: RocketMQ's brokers have no rebalancer. Each member applies the group's strategy to the
list of members that a broker has. No message reports that the former owner of a queue has released it, so a
member waits `HANDOVER_MS` before it consumes a new queue, and commits every `SELF_ASSIGNING_COMMIT_MS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from actors.remoting.bodies.groups import GrantedQueue, GroupMembers, SyncGroupReply, SyncGroupRequest
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import ConsumerGroupHeader
from actors.strategies import make_strategy
from cluster.client.config import ConsumerConfig
from cluster.client.errors import BrokerRefused, BrokerUnreachable, ClientError, SubscriptionDiffers
from cluster.client.group.membership import Membership
from cluster.client.transport.instance import ClientInstance
from store.message.message_queue import MessageQueue

# A broker's code for a rebalancer that does not respond.
REBALANCER_UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE

HANDOVER_MS = 500
SELF_ASSIGNING_COMMIT_MS = 500

DEFAULT_STRATEGY = "averagely"


class GroupProtocol(Protocol):
    """What a session needs of either way."""

    @property
    def sync_interval_ms(self) -> int:
        """Time until the next `sync`."""

    @property
    def commit_interval_ms(self) -> int:
        """Time between two commits of the consumed offsets."""

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply | None:
        """Return this member's queues, or None if the group does not know this member yet.

        Raises:
            ClientError: no broker responded, or the group refuses this member.
        """

    async def leave(self) -> None:
        """Report that this member is gone. Raises ClientError."""


def broker_addresses(instance: ClientInstance, topics: Iterable[str]) -> list[str]:
    """Return the addresses of the brokers that have `topics`, as far as the routes are known."""
    addresses: set[str] = set()
    for topic in topics:
        route = instance.routes.peek(topic)
        if route is not None:
            addresses.update(filter(None, map(route.master, route.brokers())))
    return sorted(addresses)


class SelfAssigningProtocol:
    """Averages over the members that a broker lists."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ConsumerConfig,
        membership: Membership,
        subscriptions: Mapping[str, str],
    ) -> None:
        self._instance = instance
        self._config = config
        self._membership = membership
        self._subscriptions = subscriptions
        self._begin_at_ms: dict[MessageQueue, int] = {}
        self._is_handing_over = False

    @property
    def sync_interval_ms(self) -> int:
        """Time until the next `sync`: short while a queue is handed over."""
        interval_ms = self._config.sync_interval_ms
        return min(interval_ms, HANDOVER_MS) if self._is_handing_over else interval_ms

    @property
    def commit_interval_ms(self) -> int:
        """Time between two commits."""
        return min(self._config.commit_interval_ms, SELF_ASSIGNING_COMMIT_MS)

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply | None:
        """Average over the members that the first broker to respond knows."""
        members = await self._members()
        if self._instance.client_id not in members:
            return None
        return self.share(members, self._membership.generation)

    async def leave(self) -> None:
        """Do nothing: brokers learn it from UNREGISTER_CLIENT."""

    def share(self, members: Iterable[str], generation: int) -> SyncGroupReply:
        """Apply the strategy to `members`, topic by topic; without the queues that are still handed over."""
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
        return SyncGroupReply(generation, [GrantedQueue(queue, 0) for queue in ready], members=ordered)

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
        subscriptions: Mapping[str, str],
        averaging: SelfAssigningProtocol,
    ) -> None:
        self._instance = instance
        self._config = config
        self._membership = membership
        self._subscriptions = subscriptions
        self._averaging = averaging
        self._is_averaging = False
        self._away_since_ms: int | None = None
        self._broker = ""

    @property
    def sync_interval_ms(self) -> int:
        """Time until the next `sync`."""
        return self._averaging.sync_interval_ms if self._is_averaging else self._config.sync_interval_ms

    @property
    def commit_interval_ms(self) -> int:
        """Time between two commits."""
        return self._averaging.commit_interval_ms if self._is_averaging else self._config.commit_interval_ms

    async def sync(self, *, is_leaving: bool) -> SyncGroupReply | None:
        """Return the rebalancer's assignment, or this member's average if the group needs one."""
        try:
            reply = await self._exchange(is_leaving=is_leaving)
        except BrokerRefused as error:
            if error.code != REBALANCER_UNAVAILABLE or not self._has_been_unavailable():
                raise
            self._is_averaging = True
            return await self._averaging.sync(is_leaving=is_leaving)
        self._away_since_ms = None
        self._is_averaging = reply.is_self_assigning
        return self._averaging.share(reply.members, reply.generation) if self._is_averaging else reply

    async def leave(self) -> None:
        """Report that this member is gone; what it has not released is free when its lease is over."""
        await self._exchange(is_leaving=True)

    def _has_been_unavailable(self) -> bool:
        """Note that the rebalancer is away; return True once this has lasted `self_assign_after_ms`."""
        now_ms = self._instance.now_ms()
        self._membership.keep(now_ms)
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
            return False
        return now_ms - self._away_since_ms >= self._config.self_assign_after_ms

    async def _exchange(self, *, is_leaving: bool) -> SyncGroupReply:
        """Send SYNC_GROUP to one broker after the other until one responds. Raises the last one's error."""
        config = self._config
        body = SyncGroupRequest(
            config.group,
            self._instance.client_id,
            self._membership.generation,
            dict(self._subscriptions),
            self._membership.owned(),
            config.strategy,
            config.lease_ms,
            self._membership.lease_left_ms(self._instance.now_ms()),
            is_leaving,
            config.allow_subscription_change,
        ).encode()
        topics = ", ".join(sorted(self._subscriptions))
        failure: ClientError = BrokerUnreachable(f"no broker is known for topics {topics}")
        addresses = broker_addresses(self._instance, self._subscriptions)
        for address in sorted(addresses, key=lambda address: address != self._broker):
            try:
                response = await self._instance.invoke(
                    address, RemotingCommand(RayMQRequestCode.SYNC_GROUP, body=body)
                )
            except SubscriptionDiffers:
                raise
            except ClientError as error:
                # A broker's error about the rebalancer says more than that another broker is silent.
                failure = failure if isinstance(failure, BrokerRefused) else error
                continue
            self._broker = address
            return SyncGroupReply.decode(response.body)
        raise failure

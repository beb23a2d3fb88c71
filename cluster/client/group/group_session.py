"""A member's standing conversation with its group's rebalancer, through any broker.

It asks every `sync_interval_ms`, at once when a broker says that the group has changed, and after each
release. What the answers mean is decided by `Membership`; what to do about it by the consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from actors.remoting.bodies.groups import (
    ConsumerData,
    GrantedQueue,
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupReply,
    SyncGroupRequest,
)
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import ConsumerGroupHeader, UnregisterClientHeader
from actors.remoting.request import RequestContext
from actors.remoting.table import RequestTable
from actors.strategies import make_strategy
from cluster.client.config import AutoOffset, ConsumerConfig
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    NotSupported,
    SubscriptionDiffers,
)
from cluster.client.group.membership import Changes, Membership
from cluster.client.transport.instance import ClientInstance
from store.logs import get_logger
from store.message.message_queue import MessageQueue

log = get_logger(__name__)

# By this a broker says that the group's rebalancer does not answer.
REBALANCER_AWAY = ResponseCode.SERVICE_NOT_AVAILABLE

# Where all assign themselves nobody says when a queue has been let go: so long we wait before we begin on
# one, as whoever had it learns of the change now, too, and commits.
HANDOVER_MS = 500
# And so often we commit there: a member that begins at once, as RocketMQ's do, gets no more than this again.
SELF_ASSIGNING_COMMIT_MS = 500

DEFAULT_STRATEGY = "averagely"
CONSUME_FROM: Mapping[AutoOffset, str] = {
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class GroupListener(Protocol):
    """The consumer. Called on the loop."""

    def granted(self, granted: GrantedQueue) -> None:
        """Begin to consume this queue, under this generation."""

    def revoked(self, queue: MessageQueue) -> None:
        """Stop, finish, commit; then call `released`."""

    def lost(self, queue: MessageQueue) -> None:
        """Others may have this queue: drop it at once."""

    def failed(self, error: ClientError | None) -> None:
        """The group does not want this member as it is; None: now it does."""

    def suspended(self, *, is_suspended: bool) -> None:
        """Fetch nothing until told otherwise: the lease is over, others may have the queues."""


class GroupSession:
    """One member of one group. Lives on its instance's loop."""

    def __init__(self, instance: ClientInstance, config: ConsumerConfig, listener: GroupListener) -> None:
        self.membership = Membership(config.lease_ms)
        self.subscriptions: dict[str, str] = {}
        self.is_self_assigning = False
        self._instance = instance
        self._config = config
        self._listener = listener
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_suspended = False
        self._is_leaving = False
        self._away_since_ms: int | None = None
        self._broker = ""
        self._begin_at_ms: dict[MessageQueue, int] = {}
        self._failure: ClientError | None = None

    def subscribe(self, topic: str, expression: str) -> None:
        """Consume `topic` too (again: with another expression)."""
        self.subscriptions[topic] = expression
        if self._task is None:
            self._task = self._instance.supervisor.start(f"group {self._config.group}", self._run)
            self._instance.start_heartbeats(self._heartbeat, lambda: list(self.subscriptions))
        self.wake()

    def wake(self) -> None:
        """Ask at once."""
        self._wake.set()

    async def until_commit_is_due(self) -> None:
        """Return when what this member has consumed should be committed again."""
        interval_ms = self._config.commit_interval_ms
        step_ms = min(interval_ms, SELF_ASSIGNING_COMMIT_MS)
        waited_ms = 0
        while waited_ms < (step_ms if self.is_self_assigning else interval_ms):
            await asyncio.sleep(min(step_ms, interval_ms - waited_ms) / 1000)
            waited_ms += step_ms

    def released(self, queue: MessageQueue) -> None:
        """`queue` is finished and committed."""
        self.membership.released(queue)
        self.wake()

    def begin_to_leave(self) -> None:
        """Take nothing more, and let go of everything: each queue is revoked now and named until it is
        released.
        """
        self._is_leaving = True
        for queue in self.membership.leave_all():
            self._listener.revoked(queue)
        self.wake()

    async def leave(self) -> None:
        """Tell the group that this member is gone; what is not released is free when its lease is over."""
        if self._task is None:
            return
        self._is_leaving = True
        self._task.cancel()
        try:
            await self._exchange()
        except ClientError as error:
            log.info("group_leave_unheard", group=self._config.group, error=str(error))
        header = UnregisterClientHeader(self._instance.client_id, consumer_group=self._config.group)
        for address in self._brokers():
            try:
                await self._instance.invoke(
                    address, RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.to_ext())
                )
            except ClientError as error:
                log.info("unregister_unheard", broker=address, error=str(error))

    async def _run(self) -> None:
        await self._find_routes()
        await self._instance.send_heartbeats(self._heartbeat(), list(self.subscriptions))
        while True:
            self._wake.clear()
            await self._find_routes()
            await self._sync()
            try:
                async with asyncio.timeout(self._config.sync_interval_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _find_routes(self) -> None:
        """Look up topics that have no route yet: they may be created any time."""
        for topic in list(self.subscriptions):
            if self._instance.routes.peek(topic) is None:
                try:
                    await self._instance.routes.refresh(topic)
                except ClientError as error:
                    log.info("topic_without_route", topic=topic, error=str(error))

    async def _sync(self) -> None:
        asked_at_ms = self._instance.now_ms()
        try:
            reply = await self._exchange()
        except NotSupported:
            await self._average_among_members(asked_at_ms)
        except ClientError as error:
            await self._unanswered(error)
        else:
            if isinstance(self._failure, SubscriptionDiffers):
                self._listener.failed(None)
            self._failure = None
            self._away_since_ms = None
            self.is_self_assigning = reply.is_self_assigning
            if reply.is_self_assigning:
                reply = self._after_handover(self._own_share(reply.members, reply.generation))
            self._apply(reply, asked_at_ms)
        self._suspend(is_suspended=self.membership.lease_left_ms(self._instance.now_ms()) <= 0)

    def _apply(self, reply: SyncGroupReply, asked_at_ms: int) -> None:
        if self._is_leaving:
            reply.granted = [
                item for item in reply.granted if self.membership.generation_of(item.queue) is not None
            ]
        changes: Changes = self.membership.apply(reply, asked_at_ms, self._instance.now_ms())
        if changes:
            log.info(
                "assignment_changed",
                group=self._config.group,
                generation=self.membership.generation,
                granted=len(changes.started),
                revoked=len(changes.leaving),
                lost=len(changes.lost),
                held=len(self.membership.held()),
            )
        for queue in changes.lost:
            self._listener.lost(queue)
        for queue in changes.leaving:
            self._listener.revoked(queue)
        for granted in changes.started:
            self._listener.granted(granted)

    async def _exchange(self) -> SyncGroupReply:
        """One SYNC_GROUP through the first broker that answers. Raises what the last one said when none
        does.
        """
        config = self._config
        body = SyncGroupRequest(
            config.group,
            self._instance.client_id,
            self.membership.generation,
            dict(self.subscriptions),
            self.membership.owned(),
            config.strategy,
            config.lease_ms,
            self.membership.lease_left_ms(self._instance.now_ms()),
            self._is_leaving,
            config.allow_subscription_change,
        ).encode()
        topics = ", ".join(sorted(self.subscriptions))
        failure: ClientError = BrokerUnreachable(f"no broker is known for topics {topics}")
        for address in sorted(self._brokers(), key=lambda address: address != self._broker):
            try:
                answer = await self._instance.invoke(
                    address, RemotingCommand(RayMQRequestCode.SYNC_GROUP, body=body)
                )
            except SubscriptionDiffers:
                raise
            except ClientError as error:
                # What a broker says of the rebalancer tells more than that another broker is silent.
                failure = failure if isinstance(failure, BrokerRefused) else error
                continue
            self._broker = address
            return SyncGroupReply.decode(answer.body)
        raise failure

    def _brokers(self) -> list[str]:
        addresses: set[str] = set()
        for topic in self.subscriptions:
            route = self._instance.routes.peek(topic)
            if route is not None:
                addresses.update(filter(None, map(route.master, route.brokers())))
        return sorted(addresses)

    async def _unanswered(self, error: ClientError) -> None:
        if self._failure is None or str(self._failure) != str(error):
            log.warning("group_sync_failed", group=self._config.group, error=str(error))
        self._failure = error
        if isinstance(error, SubscriptionDiffers):
            self._listener.failed(error)
        if not isinstance(error, BrokerRefused) or error.code != REBALANCER_AWAY:
            return
        now_ms = self._instance.now_ms()
        self.membership.keep(now_ms)
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        elif now_ms - self._away_since_ms >= self._config.self_assign_after_ms:
            members = await self._members()
            if self._instance.client_id in members:
                self._apply(self._own_share(members, self.membership.generation), now_ms)

    async def _average_among_members(self, asked_at_ms: int) -> None:
        """RocketMQ's brokers have no rebalancers: share out as its own members do."""
        members = await self._members()
        if self._instance.client_id in members:
            self.is_self_assigning = True
            share = self._own_share(members, self.membership.generation)
            self._apply(self._after_handover(share), asked_at_ms)

    async def _members(self) -> list[str]:
        """The group's members as the first broker that answers knows them."""
        header = ConsumerGroupHeader(self._config.group)
        for address in self._brokers():
            try:
                answer = await self._instance.invoke(
                    address, RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_ext())
                )
            except ClientError:
                continue
            return list(GroupMembers.decode(answer.body).members)
        return []

    def _own_share(self, members: Iterable[str], generation: int) -> SyncGroupReply:
        """What the strategy, RocketMQ's averaging unless there is another, gives this member when all share
        out by themselves, topic by topic; without a generation of its own.
        """
        ordered = sorted(members)
        strategy = make_strategy(self._config.strategy or DEFAULT_STRATEGY)
        mine: list[MessageQueue] = []
        for topic in self.subscriptions:
            route = self._instance.routes.peek(topic)
            if route is not None:
                mine.extend(strategy.allocate(self._instance.client_id, sorted(route.readable), ordered))
        return SyncGroupReply(generation, [GrantedQueue(queue, 0) for queue in mine], members=ordered)

    def _after_handover(self, share: SyncGroupReply) -> SyncGroupReply:
        """This share without the queues that others may still be about to commit."""
        now_ms = self._instance.now_ms()
        begun = self.membership.generation_of
        self._begin_at_ms = {
            item.queue: self._begin_at_ms.get(item.queue, now_ms + HANDOVER_MS)
            for item in share.granted
            if begun(item.queue) is None
        }
        waiting = {queue for queue, begin_at_ms in self._begin_at_ms.items() if begin_at_ms > now_ms}
        if waiting:
            asyncio.get_running_loop().call_later(HANDOVER_MS / 1000, self.wake)
            share.granted = [item for item in share.granted if item.queue not in waiting]
        return share

    def _suspend(self, *, is_suspended: bool) -> None:
        if is_suspended != self._is_suspended:
            self._is_suspended = is_suspended
            self._listener.suspended(is_suspended=is_suspended)

    def _heartbeat(self) -> HeartbeatData:
        config = self._config
        where = CONSUME_FROM[config.consume_from]
        subscriptions = [
            SubscriptionData(topic, expression, tags_of(expression))
            for topic, expression in self.subscriptions.items()
        ]
        data = ConsumerData(config.group, consume_from_where=where, subscriptions=subscriptions)
        return HeartbeatData(self._instance.client_id, [data])


def tags_of(expression: str) -> list[str]:
    """The tags of `a || b`; none for `*`."""
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    return [] if "*" in tags else tags


def notified_by(table: RequestTable, wake: Notified) -> None:
    """Have `wake` called when a broker says that a group has changed (NOTIFY_CONSUMER_IDS_CHANGED)."""

    def handle(_context: RequestContext) -> None:
        wake()

    table.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, handle)


class Notified(Protocol):
    """What a broker's notice sets off."""

    def __call__(self) -> None:
        """Act."""

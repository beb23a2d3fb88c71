"""GroupSession: one member of a consumer group.

The session syncs with the group every `sync_interval_ms`, after each released queue, and immediately when a
broker reports a change of the group. `GroupProtocol` returns the queues of this member, `Membership` computes
the changes, and the consumer (`GroupListener`) applies them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import (
    BROADCASTING,
    AssignedQueue,
    ConsumerData,
    HeartbeatData,
    SyncGroupReply,
)
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import UnregisterClientHeader
from cluster.client.config import AutoOffset, ConsumerConfig
from cluster.client.errors import ClientError, NotSupported, SubscriptionDiffers
from cluster.client.group.broadcasting import BroadcastingProtocol
from cluster.client.group.group_protocols import (
    GroupProtocol,
    RebalancerProtocol,
    SelfAssigningProtocol,
    broker_addresses,
)
from cluster.client.group.membership import Membership
from cluster.client.message_selector import MessageSelector
from cluster.client.transport.instance import ClientInstance
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

CONSUME_FROM: Mapping[AutoOffset, str] = {
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class GroupListener(Protocol):
    """Callbacks of a session to its consumer. The session calls them on the event loop."""

    def assigned(self, assigned: AssignedQueue) -> None:
        """Start to consume a queue and commit it under its generation."""

    def revoked(self, queue: MessageQueue) -> None:
        """Stop fetching `queue`, finish the messages in progress, commit, and call `released`."""

    def lost(self, queue: MessageQueue) -> None:
        """Drop `queue` immediately, because another member may already hold it."""

    def failed(self, error: ClientError | None) -> None:
        """Handle a refusal of this member by the group. `error` is None when the refusal ends."""

    def suspended(self, *, is_suspended: bool) -> None:
        """Stop fetching and delivering messages, or resume.

        The session suspends the consumer while the lease is expired, because other members may hold the
        queues.
        """


class GroupSession:
    """Membership of one consumer in one group. Use it only on the event loop of its client instance."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ConsumerConfig,
        listener: GroupListener,
        *,
        is_broadcasting: bool = False,
    ) -> None:
        """Create the session. With `is_broadcasting`, this member consumes all queues."""
        self.membership = Membership(config.lease_ms)
        self.subscriptions: dict[str, MessageSelector] = {}
        self.is_suspended = False
        self._instance = instance
        self._config = config
        self._listener = listener
        self._averaging = SelfAssigningProtocol(instance, config, self.membership, self.subscriptions)
        self._is_broadcasting = is_broadcasting
        self._protocol: GroupProtocol = (
            BroadcastingProtocol(instance, config, self.subscriptions)
            if is_broadcasting
            else RebalancerProtocol(instance, config, self.membership, self.subscriptions, self._averaging)
        )
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._is_standing_by = False
        self._failure: ClientError | None = None

    @property
    def commit_interval_ms(self) -> int:
        """Return the time between two commits of the consumer, in ms."""
        return self._protocol.commit_interval_ms

    def has_lease(self, now_ms: int) -> bool:
        """Return True if the lease is valid at `now_ms` (monotonic ms). May be called from any thread."""
        return self.membership.lease_left_ms(now_ms) > 0

    def subscribe(self, topic: str, selector: MessageSelector) -> None:
        """Subscribe to `topic`, or replace its selector. The first call joins the group."""
        self.subscriptions[topic] = selector
        if self._task is None:
            supervisor = self._instance.supervisor
            self._task = supervisor.start(f"group {self._config.group}", self._run)
            supervisor.every("lease", self._lease_check_ms, self._check_lease)
            self._instance.start_heartbeats(self._heartbeat, self._heartbeat_topics)
        self.wake()

    def wake(self) -> None:
        """Sync with the group now instead of at the next interval."""
        self._wake.set()

    def released(self, queue: MessageQueue) -> None:
        """Mark `queue` as finished and committed, and report the release to the group."""
        self.membership.released(queue)
        self.wake()

    def start_leaving(self) -> None:
        """Accept no more queues and revoke all held ones. Each is reported as held until it is released."""
        self._is_leaving = True
        for queue in self.membership.leave_all():
            self._listener.revoked(queue)
        self.wake()

    def stand_by(self) -> None:
        """Give all queues back and leave the group, until `rejoin`."""
        self._is_standing_by = True
        self.start_leaving()
        self._instance.supervisor.start("unregister", self._unregister)

    def rejoin(self) -> None:
        """Join the group again, after `stand_by`."""
        self._is_standing_by = self._is_leaving = False
        self._instance.supervisor.start("heartbeat of rejoin", self._send_heartbeats)
        self.wake()

    async def leave(self) -> None:
        """Stop syncing, report the departure to the group, and unregister from the brokers."""
        if self._task is None:
            return
        self._is_leaving = True
        self._task.cancel()
        try:
            await self._protocol.leave()
        except ClientError as error:
            _log.info("group_leave_failed", group=self._config.group, error=str(error))
        await self._unregister()

    async def _unregister(self) -> None:
        header = UnregisterClientHeader(self._instance.client_id, consumer_group=self._config.group)
        for address in broker_addresses(self._instance, self.subscriptions):
            try:
                await self._instance.invoke(
                    address, RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.to_ext())
                )
            except ClientError as error:
                _log.info("unregister_failed", broker=address, error=str(error))

    async def _run(self) -> None:
        await self._find_routes()
        await self._send_heartbeats()
        while True:
            self._wake.clear()
            await self._find_routes()
            await self._sync()
            self._check_lease()
            try:
                async with asyncio.timeout(self._protocol.sync_interval_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _find_routes(self) -> None:
        """Look up the routes of subscribed topics that have none yet. Topics may be created at any time."""
        for topic in list(self.subscriptions):
            if self._instance.routes.peek(topic) is None:
                try:
                    await self._instance.routes.refresh(topic)
                except ClientError as error:
                    _log.info("route_not_found", topic=topic, error=str(error))

    async def _sync(self) -> None:
        requested_at_ms = self._instance.now_ms()
        try:
            reply = await self._protocol.sync(is_leaving=self._is_leaving)
        except NotSupported:
            _log.info("self_assignment_started", group=self._config.group)
            self._protocol = self._averaging  # permanently; its `sync` never raises NotSupported
            await self._sync()
        except ClientError as error:
            self._note_failure(error)
        else:
            self._note_failure(None)
            if reply is not None:
                self._apply(reply, requested_at_ms)

    def _note_failure(self, error: ClientError | None) -> None:
        """Log each new sync failure once; report to the consumer if the group starts or stops refusing it."""
        if error is not None and str(error) != str(self._failure):
            _log.warning("group_sync_failed", group=self._config.group, error=str(error))
        if isinstance(error, SubscriptionDiffers) or isinstance(self._failure, SubscriptionDiffers):
            self._listener.failed(error if isinstance(error, SubscriptionDiffers) else None)
        self._failure = error

    def _apply(self, reply: SyncGroupReply, requested_at_ms: int) -> None:
        if self._is_leaving:
            reply.assigned = [
                item for item in reply.assigned if self.membership.generation_of(item.queue) is not None
            ]
        now_ms = self._instance.now_ms()
        changes = self.membership.apply(reply, requested_at_ms, now_ms)
        if changes:
            _log.info(
                "assignment_changed",
                group=self._config.group,
                generation=self.membership.generation,
                assigned=len(changes.started),
                revoked=len(changes.leaving),
                lost=len(changes.lost),
                held=len(self.membership.held(now_ms)),
            )
        for queue in changes.lost:
            self._listener.lost(queue)
        for queue in changes.leaving:
            self._listener.revoked(queue)
        for assigned in changes.started:
            self._listener.assigned(assigned)

    def _lease_check_ms(self) -> int:
        """Return the time until the lease expires, in ms.

        The lease needs a timer in addition to the check after each sync, because a sync that waits for a
        broker may take longer than the lease.
        """
        left_ms = self.membership.lease_left_ms(self._instance.now_ms())
        return left_ms if left_ms > 0 else self._config.sync_interval_ms

    def _check_lease(self) -> None:
        """Suspend the consumer if the lease has expired, or resume it after a renewal."""
        is_suspended = not self.has_lease(self._instance.now_ms())
        if is_suspended != self.is_suspended:
            self.is_suspended = is_suspended
            self._listener.suspended(is_suspended=is_suspended)

    def _heartbeat_topics(self) -> list[str]:
        return [] if self._is_standing_by else list(self.subscriptions)

    async def _send_heartbeats(self) -> None:
        await self._instance.send_heartbeats(self._heartbeat(), self._heartbeat_topics())

    def _heartbeat(self) -> HeartbeatData:
        config = self._config
        where = CONSUME_FROM[config.start_from]
        subscriptions = [selector.subscription(topic) for topic, selector in self.subscriptions.items()]
        data = ConsumerData(config.group, consume_from_where=where, subscriptions=subscriptions)
        if self._is_broadcasting:
            data.message_model = BROADCASTING
        return HeartbeatData(self._instance.client_id, [data])


def register_group_change(table: RequestTable, wake: Callable[[], None]) -> None:
    """Register `wake` as the handler of NOTIFY_CONSUMER_IDS_CHANGED, which reports a change of the group."""

    def handle(_context: RequestContext) -> None:
        wake()

    table.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, handle)

"""LateSubscriptions: pulls of Java clients that arrive before the heartbeat with their subscription.

A Java client increases the version of its subscription whenever its queues change, reports the version in a
heartbeat, and sends it in its pulls. The pulls may arrive before the heartbeat:

- Version 4.9 starts to pull before it sends the heartbeat.
- Version 5.x skips the heartbeat while its first one is being sent ("lock heartBeat, but failed" in its log),
  and sends it with the next rebalance, 20 s later.
- When a broker restarts, version 4.9 pulls from it immediately, but sends its next heartbeat up to 30 s
  later.

RocketMQ refuses all pulls until the heartbeat arrives. This broker lets a pull wait for it:

    pull ──► waiting ── heartbeat ──► pulled again
                └────── WAIT_MS ────► refused, as by RocketMQ ── the client's next pull ──► gets all tags

The last step is safe, because every client compares tags itself: the broker's tag hashes may collide. Clients
do not evaluate SQL92 expressions, so a pull with that type is refused until the heartbeat arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.broker.core.group.clients import Clients, Subscription
from actors.broker.core.group.subscriptions import (
    TAG_TYPE,
    NotSubscribed,
    compile_in_steps,
    filter_of,
    filters_use,
    subscription_for,
    takes_long,
)
from actors.transport.connection import Connection
from actors.transport.request import RequestContext
from actors.transport.slices import Steps
from actors.wire.hot_headers import PullMessageHeader
from store.reading.message_filter import MATCH_ALL, MessageFilter

WAIT_MS = 300
"""Wait time of a pull: enough for a client that sends heartbeats to a hundred brokers one after the other."""
WAITING = Bound("late_pulls", 1024, AtLimit.REFUSE, "Pulls that wait for a heartbeat.")
REFUSED = Bound(
    "refused_subscriptions",
    1024,
    AtLimit.EVICT,
    "Remembered refusals of one connection.",
)


class _Waiting(NamedTuple):
    refusal: NotSubscribed
    timer: asyncio.TimerHandle


class LateSubscriptions:
    """Finds the filter of a pull that refers to a subscription; `Puller` calls it for each such pull."""

    def __init__(self, clients: Clients[Connection], pull: Callable[[RequestContext], None]) -> None:
        """Create the hook. `pull` handles a pull again after it has waited; it may raise."""
        self._clients = clients
        self._pull = pull
        self._waiting: dict[str, dict[RequestContext, _Waiting]] = {}  # by group
        self._count = 0
        # By connection, the last version of (group, topic) that was refused.
        self._refused: WeakKeyDictionary[Connection, Newest[tuple[str, str], int]] = WeakKeyDictionary()
        clients.on_subscription(self._on_subscribed)

    def filter_for(self, context: RequestContext) -> MessageFilter | None:
        """Return the filter of a pull, or None if the pull must wait for a heartbeat.

        A waiting pull is handled again when the heartbeat arrives, or refused after WAIT_MS. A pull whose
        filter takes long to compile is handled again when that is done.

        Raises:
            Refused: the filter is invalid or of an unsupported type.
            NotSubscribed: too many pulls are waiting.
        """
        header: PullMessageHeader = context.header
        try:
            subscription = subscription_for(self._clients, header)
            if takes_long(subscription.expression, subscription.expression_type):
                context.work(self._compile(context, subscription))
                return None
            return filter_of(subscription)
        except NotSubscribed as refusal:
            may_get_all = refusal.heartbeat_may_follow and header.expression_type == TAG_TYPE
            if may_get_all and self._was_refused(header, context.connection):
                return MATCH_ALL
            self._wait(context, refusal)
            return None

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        refused = REFUSED.use(lambda: max(map(len, self._refused.values()), default=0))
        return (WAITING.use(lambda: self._count), refused, filters_use())

    def _compile(self, context: RequestContext, subscription: Subscription) -> Steps:
        yield from compile_in_steps(subscription.expression, subscription.expression_type)
        self._pull(context)
        return None

    def _wait(self, context: RequestContext, refusal: NotSubscribed) -> None:
        if self._count >= WAITING.limit:
            self._remember_refused(context, refusal)
            raise refusal
        timer = asyncio.get_running_loop().call_later(WAIT_MS / 1000, self._refuse, context)
        context.command.ext, context.command.body = {}, b""
        self._waiting.setdefault(context.header.consumer_group, {})[context] = _Waiting(refusal, timer)
        self._count += 1

    def _on_subscribed(self, group: str) -> None:
        for context in tuple(self._waiting.get(group, ())):
            try:
                subscription_for(self._clients, context.header)
            except NotSubscribed:
                continue  # the heartbeat came from another member, or is about another topic
            self._remove(context)
            if context.connection.is_closed:
                continue
            try:
                self._pull(context)
            except Exception as error:  # noqa: BLE001 - the error goes to this pull's client, and other pulls continue
                context.refuse(error)

    def _refuse(self, context: RequestContext) -> None:
        refusal = self._remove(context).refusal
        self._remember_refused(context, refusal)
        context.refuse(refusal)

    def _remove(self, context: RequestContext) -> _Waiting:
        group = context.header.consumer_group
        waiting = self._waiting[group].pop(context)
        waiting.timer.cancel()
        self._count -= 1
        if not self._waiting[group]:
            del self._waiting[group]
        return waiting

    def _remember_refused(self, context: RequestContext, refusal: NotSubscribed) -> None:
        header: PullMessageHeader = context.header
        if refusal.heartbeat_may_follow:
            refused = self._refused.setdefault(context.connection, Newest(REFUSED))
            refused[header.consumer_group, header.topic] = header.sub_version

    def _was_refused(self, header: PullMessageHeader, connection: Connection) -> bool:
        refused = self._refused.get(connection)
        subscription = header.consumer_group, header.topic
        return refused is not None and refused.get(subscription) == header.sub_version

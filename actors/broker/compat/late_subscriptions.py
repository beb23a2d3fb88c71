"""LateSubscriptions: pulls of Java clients that arrive before the heartbeat with their subscription.

A Java client raises its subscription's version whenever its queues change, reports it in a heartbeat, and
names the version in its pulls. Those may arrive first: 4.9 sends pulls before that heartbeat, and 5.x leaves
it out while its other heartbeat, of its first second, is under way ("lock heartBeat, but failed"); it then
follows with the next rebalance, 20 s later. When a broker restarts, 4.9 pulls from it at once and sends its
next heartbeat after up to 30 s. RocketMQ refuses all pulls until then. Here:

    pull ──► waiting ── heartbeat ──► pulled again
                └────── WAIT_MS ────► refused, as by RocketMQ ── the client's next pull ──► gets all tags

The last is safe as every client compares the tags itself: their hashes may collide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from actors.broker.group.clients import Clients
from actors.broker.group.subscriptions import NotSubscribed, filter_of, require_tag_type, subscription_for
from actors.remoting.connection import Connection
from actors.remoting.hot_headers import PullMessageHeader
from actors.remoting.request import RequestContext
from store.reading.message_filter import MATCH_ALL, MessageFilter

WAIT_MS = 300
"""Long enough for a client that sends its heartbeats to a hundred brokers one after the other."""
WAITING_MAX = 1024

_REFUSED_MAX = 1024
"""Subscriptions of one connection."""


class _Waiting(NamedTuple):
    refusal: NotSubscribed
    timer: asyncio.TimerHandle


class LateSubscriptions:
    """The hook of the pull path: the filter of a pull that refers to a subscription."""

    def __init__(self, clients: Clients[Connection], pull: Callable[[RequestContext], None]) -> None:
        """`pull` handles a pull again that has waited; it may raise."""
        self._clients = clients
        self._pull = pull
        self._waiting: dict[str, dict[RequestContext, _Waiting]] = {}  # by group
        self._count = 0
        # By connection, the last version of (group, topic) that was refused.
        self._refused: WeakKeyDictionary[Connection, dict[tuple[str, str], int]] = WeakKeyDictionary()
        clients.on_subscription(self._subscribed)

    def filter_for(self, context: RequestContext) -> MessageFilter | None:
        """Return the filter of a pull; None if it waits for a heartbeat, and is handled again or refused.

        Raises:
            Refused: this broker does not offer such a filter.
            NotSubscribed: too many pulls wait.
        """
        header: PullMessageHeader = context.header
        try:
            return filter_of(subscription_for(self._clients, header))
        except NotSubscribed as refusal:
            if refusal.may_follow and self._was_refused(header, context.connection):
                require_tag_type(header.expression_type)
                return MATCH_ALL
            self._wait(context, refusal)
            return None

    def _wait(self, context: RequestContext, refusal: NotSubscribed) -> None:
        if self._count >= WAITING_MAX:
            self._note_refused(context, refusal)
            raise refusal
        timer = asyncio.get_running_loop().call_later(WAIT_MS / 1000, self._give_up, context)
        self._waiting.setdefault(context.header.consumer_group, {})[context] = _Waiting(refusal, timer)
        self._count += 1

    def _subscribed(self, group: str) -> None:
        for context in tuple(self._waiting.get(group, ())):
            try:
                subscription_for(self._clients, context.header)
            except NotSubscribed:
                continue  # the heartbeat of another member, or of another topic
            self._remove(context)
            if context.connection.is_closed:
                continue
            try:
                self._pull(context)
            except Exception as error:  # noqa: BLE001 - a failed pull gets its error, and ends no other
                context.refuse(error)

    def _give_up(self, context: RequestContext) -> None:
        refusal = self._remove(context).refusal
        self._note_refused(context, refusal)
        context.refuse(refusal)

    def _remove(self, context: RequestContext) -> _Waiting:
        group = context.header.consumer_group
        waiting = self._waiting[group].pop(context)
        waiting.timer.cancel()
        self._count -= 1
        if not self._waiting[group]:
            del self._waiting[group]
        return waiting

    def _note_refused(self, context: RequestContext, refusal: NotSubscribed) -> None:
        header: PullMessageHeader = context.header
        refused = self._refused.setdefault(context.connection, {})
        subscription = header.consumer_group, header.topic
        if refusal.may_follow and (subscription in refused or len(refused) < _REFUSED_MAX):
            refused[subscription] = header.sub_version

    def _was_refused(self, header: PullMessageHeader, connection: Connection) -> bool:
        refused = self._refused.get(connection, {})
        return refused.get((header.consumer_group, header.topic)) == header.sub_version

"""LateSubscriptions: what a pull wants where only heartbeats tell it, and pulls that come before theirs.

A Java client raises its subscription's version whenever its queues change, tells it by a heartbeat, and names
the version in its pulls. Those may come first: 4.9 sends pulls before that heartbeat, and 5.x leaves it out
where its other heartbeat, of its first second, is just under way ("lock heartBeat, but failed"); it then
follows with the next rebalance, 20 s later. When a broker comes back, 4.9 pulls from it at once and sends its
next heartbeat after up to 30 s. RocketMQ refuses all pulls until then. Here such a pull

1. waits a moment for the heartbeat,
2. then is refused as RocketMQ refuses it; clients ask again after a second, and
3. who asks again over the same connection is served whatever the tags: every client compares them itself, as
   their hashes may collide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.broker.group.clients import Clients, Subscription
from actors.broker.group.subscriptions import filter_of, require_tag_type
from actors.remoting.codes import ResponseCode
from actors.remoting.connection import Connection
from actors.remoting.hot_headers import PullMessageHeader
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.reading.message_filter import MATCH_ALL, MessageFilter

WAIT_MS = 300
"""A client that has a hundred brokers tells one after the other."""
WAITING_MAX = 1024

_REFUSED = "refused_subscriptions"
_REFUSED_MAX = 1024
"""Subscriptions of one connection."""


class NotTold(Refused):
    """No heartbeat has told yet what a pull refers to; it may be on its way."""

    def __init__(self, code: ResponseCode, remark: str, *, is_served_again: bool) -> None:
        super().__init__(code, remark)
        self.is_served_again = is_served_again


class _Waiting:
    __slots__ = ("context", "refusal", "timer")

    def __init__(self, context: RequestContext, refusal: NotTold) -> None:
        self.context = context
        self.refusal = refusal
        self.timer: asyncio.TimerHandle | None = None


class LateSubscriptions:
    """The subscriptions that members of one broker's groups have told, as pulls refer to them."""

    def __init__(self, clients: Clients[Connection], pull: Callable[[RequestContext], None]) -> None:
        """`pull` does a pull again that has waited; it may raise."""
        self._clients = clients
        self._pull = pull
        self._waiting: dict[str, list[_Waiting]] = {}
        self._count = 0
        clients.on_subscription(self._told)

    def __len__(self) -> int:
        return self._count

    def filter_for(self, header: PullMessageHeader, connection: Connection) -> MessageFilter:
        """The filter of a pull that refers to a subscription.

        Raises NotTold where a heartbeat may yet tell, Refused where the filter is one that is not offered.
        """
        try:
            subscription = self._known(header)
        except NotTold as refusal:
            if not refusal.is_served_again or not _was_refused(header, connection):
                raise
            require_tag_type(header.expression_type)
            return MATCH_ALL
        return filter_of(subscription)

    def wait(self, context: RequestContext, refusal: NotTold) -> None:
        """Do the pull when a heartbeat has told what it lacks, or refuse it after a moment.

        Raises the refusal where too many wait.
        """
        if self._count >= WAITING_MAX:
            _note_refused(context, refusal)
            raise refusal
        waiting = _Waiting(context, refusal)
        waiting.timer = asyncio.get_running_loop().call_later(WAIT_MS / 1000, self._give_up, waiting)
        self._waiting.setdefault(context.header.consumer_group, []).append(waiting)
        self._count += 1

    def _known(self, header: PullMessageHeader) -> Subscription:
        group = self._clients.group(header.consumer_group)
        if group is None:
            raise NotTold(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {header.consumer_group!r} has no member connected here: send a heartbeat first",
                is_served_again=header.sub_version > 0,  # of a member, then
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise NotTold(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {header.consumer_group!r} does not subscribe to topic {header.topic!r}",
                is_served_again=False,
            )
        if subscription.version < header.sub_version:
            raise NotTold(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription to {header.topic!r} known here is of version {subscription.version}, "
                f"older than {header.sub_version}: send a heartbeat first",
                is_served_again=True,
            )
        return subscription

    def _told(self, group: str) -> None:
        for waiting in tuple(self._waiting.get(group, ())):
            context = waiting.context
            try:
                self._known(context.header)
            except NotTold:
                continue  # another member's heartbeat, or of another topic
            self._remove(waiting)
            if context.connection.is_closed:
                continue
            try:
                self._pull(context)
            except Exception as error:  # noqa: BLE001 - one pull's damage is its own answer, and ends no other's
                context.refuse(error)

    def _give_up(self, waiting: _Waiting) -> None:
        self._remove(waiting)
        _note_refused(waiting.context, waiting.refusal)
        waiting.context.refuse(waiting.refusal)

    def _remove(self, waiting: _Waiting) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        group = waiting.context.header.consumer_group
        others = self._waiting[group]
        others.remove(waiting)
        self._count -= 1
        if not others:
            del self._waiting[group]


def _note_refused(context: RequestContext, refusal: NotTold) -> None:
    header: PullMessageHeader = context.header
    refused = context.connection.attributes.extra.setdefault(_REFUSED, {})
    subscription = header.consumer_group, header.topic
    if refusal.is_served_again and (subscription in refused or len(refused) < _REFUSED_MAX):
        refused[subscription] = header.sub_version


def _was_refused(header: PullMessageHeader, connection: Connection) -> bool:
    refused = connection.attributes.extra.get(_REFUSED)
    return refused is not None and refused.get((header.consumer_group, header.topic)) == header.sub_version

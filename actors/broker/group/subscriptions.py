"""Subscriptions: the filters that consumers' tag expressions stand for."""

from __future__ import annotations

from functools import lru_cache

from actors.broker.group.clients import Clients, Subscription
from actors.remoting.bodies.groups import SubscriptionData
from actors.remoting.codes import ResponseCode
from actors.remoting.connection import Connection
from actors.remoting.hot_headers import PullMessageHeader
from actors.remoting.remoting_errors import Refused
from store.message.tags import tags_code
from store.reading.message_filter import MATCH_ALL, MessageFilter, TagFilter

ALL_TAGS = "*"
TAG_TYPE = "TAG"


@lru_cache(maxsize=8192)
def compile_filter(expression: str) -> MessageFilter:
    """Return the filter for `a || b`; an empty expression and `*` match all.

    Raises:
        Refused: (SUBSCRIPTION_PARSE_FAILED) nothing is left between the bars.
    """
    if not expression or expression.strip() == ALL_TAGS:
        return MATCH_ALL
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription {expression!r} names no tag: write `a || b`, or `*` for all",
        )
    return MATCH_ALL if ALL_TAGS in tags else TagFilter(tags)


class NotSubscribed(Refused):
    """A pull refers to a subscription that no heartbeat has reported.

    `may_follow`: a member of the group has reported it elsewhere, so its heartbeat to this broker may follow.
    """

    def __init__(self, code: ResponseCode, remark: str, *, may_follow: bool) -> None:
        super().__init__(code, remark)
        self.may_follow = may_follow


def subscription_for(clients: Clients[Connection], header: PullMessageHeader) -> Subscription:
    """Return the subscription that a pull refers to. Raises NotSubscribed."""
    group = clients.group(header.consumer_group)
    if group is None:
        raise NotSubscribed(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"group {header.consumer_group!r} has no member connected here: send a heartbeat first",
            may_follow=header.sub_version > 0,  # only members have a version
        )
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise NotSubscribed(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"group {header.consumer_group!r} does not subscribe to topic {header.topic!r}",
            may_follow=False,
        )
    if subscription.version < header.sub_version:
        raise NotSubscribed(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the subscription to {header.topic!r} known here is of version {subscription.version}, "
            f"older than {header.sub_version}: send a heartbeat first",
            may_follow=True,
        )
    return subscription


def filter_of(subscription: Subscription) -> MessageFilter:
    """Return the filter of a subscription. Raises Refused if this broker does not offer it."""
    require_tag_type(subscription.expression_type)
    return compile_filter(subscription.expression)


def require_tag_type(expression_type: str | None) -> None:
    """Raise Refused for a kind of filter that this broker does not offer."""
    if expression_type and expression_type != TAG_TYPE:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            # RocketMQ's words, as far as they go.
            f"The broker does not support consumer to filter message by {expression_type}: "
            f"subscribe by {TAG_TYPE}",
        )


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """Return the subscription in the form of RocketMQ's clients, with its tags and their hashes."""
    expression = subscription.expression or ALL_TAGS
    tags = [tag for part in expression.split("||") if (tag := part.strip()) and tag != ALL_TAGS]
    if subscription.expression_type != TAG_TYPE:
        tags = []
    return SubscriptionData(
        subscription.topic,
        expression,
        tags,
        [tags_code(tag) for tag in tags],
        subscription.version,
        subscription.expression_type,
    )

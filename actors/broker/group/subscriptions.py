"""Subscriptions: the filters that consumers' tag expressions stand for."""

from __future__ import annotations

from functools import lru_cache

from actors.broker.group.clients import Subscription
from actors.remoting.bodies.groups import SubscriptionData
from actors.remoting.codes import ResponseCode
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

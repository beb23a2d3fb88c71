"""What a consumer wants of a topic: a tag expression, and the tag hashes that it stands for."""

from __future__ import annotations

from functools import lru_cache

from actors.broker.group.clients import Subscription
from actors.remoting.bodies.groups import SubscriptionData
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.message.tags import tags_code

ALL_TAGS = "*"
TAG_TYPE = "TAG"


@lru_cache(maxsize=8192)
def tags_codes_of(expression: str) -> frozenset[int] | None:
    """The tag hashes that `a || b` matches; None for all (empty or `*`).

    Raises `Refused` (SUBSCRIPTION_PARSE_FAILED) when nothing is left between the bars.
    """
    if not expression or expression.strip() == ALL_TAGS:
        return None
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription {expression!r} names no tag: write `a || b`, or `*` for all",
        )
    return None if ALL_TAGS in tags else frozenset(map(tags_code, tags))


def is_met_by(subscription: Subscription, tags_codes: frozenset[int] | None) -> bool:
    """Whether these tag hashes are what it wants; of one that is refused, nothing is."""
    try:
        require_tag_type(subscription.expression_type)
        return tags_codes_of(subscription.expression) == tags_codes
    except Refused:
        return False


def require_tag_type(expression_type: str | None) -> None:
    """Raise `Refused` for filters that this broker does not have."""
    if expression_type and expression_type != TAG_TYPE:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            # RocketMQ's words, as far as they go.
            f"The broker does not support consumer to filter message by {expression_type}: "
            f"subscribe by {TAG_TYPE}",
        )


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """A subscription as RocketMQ's clients write it, with its tags and their hashes."""
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

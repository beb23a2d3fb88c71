"""Subscriptions of consumer groups: tag and SQL92 expressions, and the message filters compiled from them."""

from __future__ import annotations

from collections.abc import Generator

from actors.bounds import Use
from actors.broker.core.group.clients import Clients, Subscription
from actors.broker.core.group.compiled_filters import LIVE_BYTES, CompiledFilters
from actors.transport.connection import Connection
from actors.wire.bodies.groups import SubscriptionData
from actors.wire.codes import ResponseCode
from actors.wire.header import EXPRESSION_CHARS_MAX
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.remoting_errors import Refused
from store.message.filter.operands import ExpressionInvalid
from store.message.filter.sql92 import CHARACTERS_MAX, compile_steps
from store.message.tags import tags_code
from store.reading.message_filter import MATCH_ALL, MessageFilter, TagFilter
from store.reading.sql_filter import SqlFilter

ALL_TAGS = "*"
TAG_TYPE = "TAG"
SQL_TYPE = "SQL92"
_tag_filters = CompiledFilters()
_sql_filters = CompiledFilters()
_LONG_CHARACTERS = 500  # compiled in less than 5 ms
_QUOTED_MAX = 200  # characters of an expression that an error response quotes


def filters_use() -> Use:
    """Return the use of the bound of compiled filters."""
    return LIVE_BYTES.use(lambda: max(_tag_filters.live_bytes, _sql_filters.live_bytes))


def compile_filter(expression: str, expression_type: str | None = TAG_TYPE) -> MessageFilter:
    """Compile a tag expression such as `a || b`, or a SQL92 expression.

    An empty tag expression and `*` match all messages.

    Raises:
        Refused: (SUBSCRIPTION_PARSE_FAILED) the tag expression consists of bars and names no tag, or the
            SQL92 expression is invalid; (SYSTEM_ERROR) the type is neither TAG nor SQL92.
    """
    if not expression_type or expression_type == TAG_TYPE:
        if len(expression) > EXPRESSION_CHARS_MAX:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the tag expression has {len(expression):,} characters, over the limit of "
                f"{EXPRESSION_CHARS_MAX:,}: use fewer or shorter tags",
            )
        return _compile_tags(expression)
    if expression_type != SQL_TYPE:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            # RocketMQ's remark up to the colon.
            f"The broker does not support consumer to filter message by {expression_type}: "
            f"use expression type {TAG_TYPE} or {SQL_TYPE}",
        )
    compiled = _compile_sql(expression)
    if isinstance(compiled, ExpressionInvalid):
        quoted = expression if len(expression) <= _QUOTED_MAX else f"{expression[:_QUOTED_MAX]}…"
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the SQL92 expression {quoted!r} is invalid: {compiled}"
        )
    return compiled


def _compile_tags(expression: str) -> MessageFilter:
    known = _tag_filters.get(expression)
    if isinstance(known, MessageFilter):
        return known
    compiled = _parse_tags(expression)
    if compiled is not MATCH_ALL:
        _tag_filters.put(expression, compiled)
    return compiled


def _parse_tags(expression: str) -> MessageFilter:
    if not expression or expression.strip() == ALL_TAGS:
        return MATCH_ALL
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription expression {expression!r} has no tag: write `tag1 || tag2`, or `*` for all",
        )
    return MATCH_ALL if ALL_TAGS in tags else TagFilter(tags)


def _compile_sql(expression: str) -> MessageFilter | ExpressionInvalid:
    """Compile a SQL92 expression, or return the error: clients repeat requests with invalid expressions."""
    known = _sql_filters.get(expression)
    if known is not None:
        return known
    compiled: SqlFilter | ExpressionInvalid
    try:
        compiled = SqlFilter(expression)
    except ExpressionInvalid as error:
        compiled = error.with_traceback(None)
    _sql_filters.put(expression, compiled)
    return compiled


def takes_long(expression: str | None, expression_type: str | None) -> bool:
    """Return True if `compile_filter` would take several milliseconds: call `compile_in_steps` before."""
    if expression is None or not _LONG_CHARACTERS < len(expression) <= CHARACTERS_MAX:
        return False
    return expression_type == SQL_TYPE and _sql_filters.get(expression) is None


def compile_in_steps(expression: str, expression_type: str | None) -> Generator[None, None, None]:
    """Compile a long SQL92 expression in steps of about a millisecond, for a later call of `compile_filter`.

    Raises Refused (SYSTEM_BUSY) if the filters in use take too much memory.
    """
    if not takes_long(expression, expression_type):
        return
    compiled: SqlFilter | ExpressionInvalid
    try:
        compiled = SqlFilter(expression, (yield from compile_steps(expression)))
    except ExpressionInvalid as error:
        compiled = error.with_traceback(None)
    _sql_filters.put(expression, compiled)


class NotSubscribed(Refused):
    """A pull refers to a subscription that no heartbeat has reported to this broker.

    `heartbeat_may_follow` is True if the client knows the subscription's version: then it is a member of the
    group, and its heartbeat to this broker may be on its way.
    """

    def __init__(self, code: ResponseCode, remark: str, *, heartbeat_may_follow: bool) -> None:
        super().__init__(code, remark)
        self.heartbeat_may_follow = heartbeat_may_follow


def subscription_for(clients: Clients[Connection], header: PullMessageHeader) -> Subscription:
    """Return the group's subscription to which a pull refers. Raises NotSubscribed."""
    group = clients.group(header.consumer_group)
    if group is None:
        raise NotSubscribed(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"group {header.consumer_group!r} has no member connected to this broker: send a heartbeat first",
            heartbeat_may_follow=header.sub_version > 0,  # only members know a version
        )
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise NotSubscribed(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"group {header.consumer_group!r} does not subscribe to topic {header.topic!r}: subscribe first",
            heartbeat_may_follow=False,
        )
    if subscription.version < header.sub_version:
        raise NotSubscribed(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the subscription of group {header.consumer_group!r} to topic {header.topic!r} has version "
            f"{subscription.version} on this broker, older than {header.sub_version}: send a heartbeat first",
            heartbeat_may_follow=True,
        )
    return subscription


def filter_of(subscription: Subscription) -> MessageFilter:
    """Return the message filter of a subscription. Raises Refused as `compile_filter` does."""
    return compile_filter(subscription.expression, subscription.expression_type)


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """Return RocketMQ's SubscriptionData of a subscription: its expression, tags and tag hash codes."""
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

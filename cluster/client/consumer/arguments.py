"""Checks of the arguments of consumer methods. Each function raises ConfigInvalid for an invalid argument."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import SupportsIndex

from cluster.client.errors import ConfigInvalid
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from cluster.client.transport.compiled import check_tables
from store.message.message_queue import MessageQueue
from store.message.validate import check_topic
from store.store_errors import MessageInvalid

OFFSET_MAX = (1 << 63) - 1
_SQL = re.compile(r"[<>=]|\b(AND|OR|NOT|IS|IN|BETWEEN)\b")


def topics_of(topics: str | Iterable[str]) -> list[str]:
    """Return the topics of a `subscribe` call as a list of valid names."""
    given = [topics] if isinstance(topics, str) else topics
    if not isinstance(given, Iterable):
        raise ConfigInvalid(f"subscribe to {topics!r}: give a topic name or a list of topic names")
    names = list(given)
    for name in names:
        try:
            check_topic(name)
        except MessageInvalid as error:
            raise ConfigInvalid(f"subscribe: {error}") from error
    return names


def selector_of(expression: str | MessageSelector) -> MessageSelector:
    """Return a selector for an expression: `*` or `tag || tag`. An empty one means `*`, as in RocketMQ."""
    if isinstance(expression, MessageSelector):
        if expression.type != "TAG":
            return MessageSelector.by_sql(expression.expression)
        expression = expression.expression
    if not isinstance(expression, str):
        raise ConfigInvalid(
            f"the filter expression is {expression!r}: give '*', 'tag || tag' or a MessageSelector"
        )
    if any(_is_like_sql(tag.strip()) for tag in expression.split("||")):
        raise ConfigInvalid(
            f"the filter expression {expression!r} looks like SQL92: "
            "give MessageSelector.by_sql(expression), or tags as 'tag || tag'"
        )
    return MessageSelector(expression) if expression.strip() else ALL_MESSAGES


def _is_like_sql(tag: str) -> bool:
    return " " in tag and _SQL.search(tag) is not None


def queues_of(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues of a call as a list."""
    if not isinstance(queues, Iterable) or isinstance(queues, MessageQueue):
        raise ConfigInvalid(f"queues is {queues!r}: give a list of MessageQueue, for example queues(topic)")
    given = list(queues)
    for queue in given:
        check_is_queue(queue)
    return given


def check_is_queue(queue: object) -> None:
    """Raise ConfigInvalid unless `queue` is a MessageQueue."""
    if not isinstance(queue, MessageQueue):
        raise ConfigInvalid(f"queue is {queue!r}: give a MessageQueue, for example one of queues(topic)")


def offset_of(operation: str, queue: object, offset: SupportsIndex) -> int:
    """Return a queue offset as an int. It may be a NumPy integer. `operation` names the call in the error."""
    check_is_queue(queue)
    try:
        number = index(offset)
    except TypeError:
        number = -1
    if not 0 <= number <= OFFSET_MAX:
        raise ConfigInvalid(
            f"{operation} of {queue} to {offset!r}: offsets begin at 0 and are whole numbers "
            "(see seek_to_beginning and seek_to_end)"
        )
    return number


def offsets_of(offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return the offsets of a `commit` call, by queue."""
    if not isinstance(offsets, Mapping):
        raise ConfigInvalid(f"offsets is {offsets!r}: give a mapping of MessageQueue to offset")
    return {queue: offset_of("commit", queue, offset) for queue, offset in offsets.items()}


def check_time(timestamp_ms: object) -> None:
    """Raise ConfigInvalid unless `timestamp_ms` is a whole number of milliseconds since the epoch."""
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= OFFSET_MAX:
        raise ConfigInvalid(
            f"timestamp_ms is {timestamp_ms!r}: give whole milliseconds since the epoch "
            "(for a datetime: int(moment.timestamp() * 1000))"
        )


def check_poll(name: str, count: int, timeout_ms: float) -> None:
    """Raise ConfigInvalid unless the arguments of a poll are valid. `name` is the parameter name of `count`.

    RocketMQ's and Kafka's `poll` take the timeout as the first argument; this one takes the count. The error
    therefore names the argument that holds the timeout.
    """
    if type(count) is not int or count < 1:
        raise ConfigInvalid(
            f"{name} is {count!r}: it must be over 0 and a whole number (the timeout is timeout_ms)"
        )
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:
        raise ConfigInvalid(f"timeout_ms is {timeout_ms!r}: it must be 0 or more")


def columns_of(columns: Sequence[str] | None) -> list[str] | None:
    """Return the names of columns of ALL_FIELDS as a list; None means those of RECORD_SCHEMA.

    Raises PackageMissing, and ConfigInvalid for an unknown name.
    """
    check_tables("poll_arrow")
    if columns is None:
        return None
    from store.kernels.arrow import ALL_FIELDS

    if isinstance(columns, str):
        raise ConfigInvalid(f"columns is {columns!r}: give a list of column names")
    unknown = [name for name in columns if name not in ALL_FIELDS]
    if unknown:
        raise ConfigInvalid(f"unknown column {unknown[0]!r}: the columns are {', '.join(ALL_FIELDS)}")
    return list(columns)

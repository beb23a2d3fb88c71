"""What callers give to consumers, checked before anything is done with it. Each raises ConfigInvalid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import SupportsIndex

from cluster.client.errors import ConfigInvalid
from store.message.message_queue import MessageQueue
from store.message.validate import check_topic
from store.store_errors import MessageInvalid

ALL = "*"
OFFSET_MAX = (1 << 63) - 1
_SQL = re.compile(r"[<>=]|\b(AND|OR|NOT|IS|IN|BETWEEN)\b")


def topics_of(topics: str | Iterable[str]) -> list[str]:
    """The topics to subscribe to."""
    given = [topics] if isinstance(topics, str) else topics
    if not isinstance(given, Iterable):
        raise ConfigInvalid(f"subscribe to {topics!r}: give a topic, or several in a list")
    names = list(given)
    for name in names:
        try:
            check_topic(name)
        except MessageInvalid as error:
            raise ConfigInvalid(f"subscribe: {error}") from error
    return names


def expression_of(expression: str) -> str:
    """The filter: `*` or `tag || tag`; an empty one is `*`, as in RocketMQ."""
    if not isinstance(expression, str):
        raise ConfigInvalid(f"the expression is {expression!r}: give '*' or 'tag || tag'")
    if any(_is_like_sql(tag.strip()) for tag in expression.split("||")):
        raise ConfigInvalid(
            f"the expression {expression!r} looks like SQL92, which is not offered: give '*' or 'tag || tag'"
        )
    return expression if expression.strip() else ALL


def _is_like_sql(tag: str) -> bool:
    return " " in tag and _SQL.search(tag) is not None


def queues_of(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues that a call names."""
    if not isinstance(queues, Iterable) or isinstance(queues, MessageQueue):
        raise ConfigInvalid(f"the queues are {queues!r}: give several MessageQueues, as from queues(topic)")
    given = list(queues)
    for queue in given:
        check_queue(queue)
    return given


def check_queue(queue: object) -> None:
    """One queue."""
    if not isinstance(queue, MessageQueue):
        raise ConfigInvalid(f"the queue is {queue!r}: give a MessageQueue, as from queues(topic)")


def offset_of(what: str, queue: object, offset: SupportsIndex) -> int:
    """An offset of a queue, also one of numpy's."""
    check_queue(queue)
    try:
        number = index(offset)
    except TypeError:
        number = -1
    if not 0 <= number <= OFFSET_MAX:
        raise ConfigInvalid(
            f"{what} of {queue} to {offset!r}: offsets begin at 0 and are whole numbers "
            "(see seek_to_beginning and seek_to_end)"
        )
    return number


def offsets_of(offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Offsets to commit."""
    if not isinstance(offsets, Mapping):
        raise ConfigInvalid(f"the offsets are {offsets!r}: give a mapping of MessageQueue to offset")
    return {queue: offset_of("commit", queue, offset) for queue, offset in offsets.items()}


def check_time(timestamp_ms: object) -> None:
    """A time, in milliseconds since the epoch."""
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= OFFSET_MAX:
        raise ConfigInvalid(
            f"timestamp_ms is {timestamp_ms!r}: give whole milliseconds since the epoch "
            "(of a datetime: int(moment.timestamp() * 1000))"
        )


def check_poll(name: str, count: int, timeout_ms: float) -> None:
    """A poll for something: RocketMQ's and Kafka's have the time where ours has the count."""
    if type(count) is not int or count < 1:
        raise ConfigInvalid(f"{name} is {count!r}: it must be over 0 and whole (the time is timeout_ms)")
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:
        raise ConfigInvalid(f"timeout_ms is {timeout_ms!r}: it must be 0 or more")


def columns_of(columns: Sequence[str] | None) -> list[str] | None:
    """Columns of RECORD_SCHEMA."""
    if columns is None:
        return None
    from store.reading.columns import RECORD_SCHEMA

    if isinstance(columns, str):
        raise ConfigInvalid(f"columns is {columns!r}: give a list of names")
    unknown = [name for name in columns if name not in RECORD_SCHEMA.names]
    if unknown:
        raise ConfigInvalid(f"no column is named {unknown[0]!r}: there are {', '.join(RECORD_SCHEMA.names)}")
    return list(columns)

"""Bounded search through the messages of a topic, which reports how much it did not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.client.errors import ConfigInvalid
from cluster.views.offsets import offsets_at
from cluster.views.times import parse_position
from store.message.properties import encode_properties
from store.store_errors import MessageInvalid

if TYPE_CHECKING:
    from cluster.client import Admin, MessageExt, MessageQueue
    from store.common.clock import Clock

BATCH = 32

Keep = Callable[["MessageExt"], bool]


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """When a scan stops: after `found` messages, `scanned` messages, or `time_ms`."""

    found: int = 50
    scanned: int = 20_000
    time_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan.

    Attributes:
        messages: The messages that were kept, by store time.
        scanned: Number of messages read.
        total: Number of messages in the range.
        unreadable: Number of messages of the range that the broker did not return: they were deleted.
        stopped: Why the scan stopped before the end of the range; None if it read everything.
        positions: The next offset of each queue, to continue.
    """

    messages: Sequence[MessageExt]
    scanned: int
    total: int
    unreadable: int
    stopped: str | None
    positions: Mapping[MessageQueue, int]


def search_range(
    admin: Admin, topic: str, since: str | None, until: str | None, last: int
) -> tuple[Mapping[MessageQueue, int], Mapping[MessageQueue, int]]:
    """Return the offsets at which a search begins and ends in each queue.

    It begins at `since` (earliest, latest or a time), or without it with the `last` messages of each queue,
    and ends before the messages stored at `until` or later; None: at the present end. Raises `ClientError`.
    """
    ends = offsets_at(admin, topic, "latest" if until is None else parse_position(until))
    if since is not None:
        return offsets_at(admin, topic, parse_position(since)), ends
    oldest = admin.beginning_offsets(topic)
    return {queue: max(end - last, oldest.get(queue, 0)) for queue, end in ends.items()}, ends


def scan(
    admin: Admin,
    begins: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    keep: Keep,
    limits: ScanLimits,
    clock: Clock,
) -> ScanResult:
    """Read the offsets [begin, end) of each queue in turn until a limit. Raises `ClientError`."""
    deadline_ns = clock.monotonic_ns() + limits.time_ms * 1_000_000
    positions = {queue: min(begin, ends.get(queue, begin)) for queue, begin in begins.items()}
    total = sum(max(ends.get(queue, at) - at, 0) for queue, at in positions.items())
    found: list[MessageExt] = []
    scanned = unreadable = 0
    stopped: str | None = None
    open_queues = [queue for queue, at in positions.items() if at < ends.get(queue, at)]
    while open_queues and stopped is None:
        for queue in list(open_queues):
            at, end = positions[queue], ends[queue]
            batch = admin.messages_at(queue, at, min(BATCH, end - at))
            if not batch:
                unreadable += end - at
                positions[queue] = end
            for message in batch:
                positions[queue] = message.queue_offset + 1
                scanned += 1
                if keep(message):
                    found.append(message)
                    if len(found) >= limits.found:
                        break
            if positions[queue] >= end:
                open_queues.remove(queue)
            stopped = _reason(len(found), scanned, limits, is_late=clock.monotonic_ns() > deadline_ns)
            if stopped is not None:
                break
    is_complete = not open_queues
    found.sort(key=lambda each: (each.store_timestamp, each.broker_name, each.queue_id, each.queue_offset))
    return ScanResult(found, scanned, total, unreadable, None if is_complete else stopped, positions)


def _reason(found: int, scanned: int, limits: ScanLimits, *, is_late: bool) -> str | None:
    if found >= limits.found:
        return f"{limits.found:,} messages were found"
    if scanned >= limits.scanned:
        return f"{limits.scanned:,} messages were read"
    return f"{limits.time_ms:,} ms have passed" if is_late else None


def matcher(
    *, tags: str | None = None, sql: str | None = None, key: str | None = None, contains: str | None = None
) -> Keep:
    """Return a function that is True for messages that match all given conditions.

    Args:
        tags: Tag expression: `a || b`.
        sql: SQL92 expression on the properties.
        key: One of the keys, or the id of the producer.
        contains: Text in the body.

    Raises ConfigInvalid if the SQL92 expression is invalid.
    """
    from cluster.client import MessageSelector

    conditions: list[Keep] = []
    if tags and (wanted := set(MessageSelector.by_tag(tags).tags)):
        conditions.append(lambda message: message.tags in wanted)
    if sql:
        conditions.append(_sql(sql))
    if key:
        conditions.append(lambda message: key in (message.keys or "").split(" ") or key == message.uniq_key)
    if contains:
        part = contains.encode("utf-8", "surrogatepass")
        conditions.append(lambda message: part in bytes(message.body))
    return lambda message: all(condition(message) for condition in conditions)


def _sql(expression: str) -> Keep:
    # Imported here, because most searches do not need the parser.
    from store.message.filter.operands import ExpressionInvalid
    from store.message.filter.sql92 import compile_expression

    try:
        truth = compile_expression(expression)
    except ExpressionInvalid as error:
        raise ConfigInvalid(f"the SQL92 expression {expression[:200]!r} is invalid: {error}") from error

    def matches(message: MessageExt) -> bool:
        try:
            return truth(b"\x02" + encode_properties(message.properties)) is True
        except (ValueError, MessageInvalid):  # a property cannot be converted: as in a broker, no match
            return False

    return matches

"""Views of a group's offsets, and previews of their changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.views.times import parse_position

if TYPE_CHECKING:
    from actors.wire.bodies.progress import ConsumeStats
    from cluster.client import Admin, MessageQueue


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a group in one queue.

    Attributes:
        committed: The committed offset; None if the group has not committed one.
        end: Offset of the next message of the queue.
        lag: Messages that the group has not acknowledged; without a committed offset, those that it would
            get. None if it is unknown.
        in_flight: Messages that are delivered but not acknowledged; None if it is unknown.
        last_ms: Store time of the last consumed message in milliseconds since the epoch, or None.
    """

    topic: str
    broker: str
    queue: int
    committed: int | None
    end: int
    lag: int | None
    in_flight: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A change of a committed offset; `before` is None if the group has no offset in the queue."""

    topic: str
    broker: str
    queue: int
    before: int | None
    after: int


def progress(admin: Admin, group: str, topic: str | None = None) -> list[QueueProgress]:
    """Return the progress of a group in each queue, of one topic or of all. Raises `ClientError`."""
    return progress_in(admin.group_stats(group, topic))


def known_sum(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the values is unknown: without it, the sum would be too small."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def progress_in(stats: ConsumeStats) -> list[QueueProgress]:
    """Return the progress in each queue of `stats`."""
    return [
        QueueProgress(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offset.committed,
            offset.broker_offset,
            offset.lag,
            offset.in_flight,
            offset.last_timestamp or None,
        )
        for queue, offset in stats.offsets.items()
    ]


def offsets_at(admin: Admin, topic: str, position: str | int) -> dict[MessageQueue, int]:
    """Return the offset of `position` in each queue of a topic.

    `position` is "earliest", "latest", or a time in milliseconds since the epoch. Raises `ClientError`.
    """
    if isinstance(position, int):
        return admin.offsets_at(topic, position)
    return admin.beginning_offsets(topic) if position == "earliest" else admin.end_offsets(topic)


def targets(
    admin: Admin, topic: str, to: str | None, queue: str | None, offset: int | None
) -> dict[MessageQueue, int]:
    """Return the target offset of each queue of a reset.

    Args:
        admin: Client of the cluster.
        topic: The topic.
        to: "earliest", "latest" or a time, as in `cluster.views.times`.
        queue: The only queue, as BROKER:QUEUE; None for all.
        offset: An offset of `queue`, instead of `to`.

    Raises ConfigInvalid if the target is not exactly one, and `ClientError`.
    """
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ConfigInvalid

    if (to is None) == (offset is None):
        raise ConfigInvalid("a target is required: `to`, or `queue` with `offset`")
    wanted = None if queue is None else parse_queue(queue, topic)
    if offset is not None:
        if wanted is None:
            raise ConfigInvalid("an offset is one of a queue: give the queue too, as BROKER:QUEUE")
        return {wanted: offset}
    found = offsets_at(admin, topic, parse_position(to or ""))
    if wanted is None:
        return found
    if wanted not in found:
        raise ConfigInvalid(f"topic {topic!r} has no queue {queue}: choose another one")
    return {wanted: found[wanted]}


def parse_queue(text: str, topic: str) -> MessageQueue:
    """Parse a queue written as `BROKER:QUEUE`, for example `broker-a:3`. Raises ConfigInvalid."""
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client import MessageQueue
    from cluster.client.errors import ConfigInvalid

    broker, _, queue_id = text.rpartition(":")
    if not broker or not re.fullmatch("[0-9]{1,9}", queue_id):
        raise ConfigInvalid(f"{text[:80]!r} is not a queue: use BROKER:QUEUE, for example broker-a:3")
    return MessageQueue(topic, broker, int(queue_id))


def preview(admin: Admin, group: str, targets: Mapping[MessageQueue, int]) -> list[OffsetChange]:
    """Return the changes if the offsets of `group` are set to `targets`. Raises `ClientError`."""
    topics = {queue.topic for queue in targets}
    return _changes(targets, admin.group_stats(group, topics.pop() if len(topics) == 1 else None))


def preview_clone(admin: Admin, source: str, target: str, topic: str | None = None) -> list[OffsetChange]:
    """Return the changes if the offsets of group `source` are copied to `target`. Raises `ClientError`."""
    taken = admin.group_stats(source, topic).offsets
    return _changes(
        {queue: offset.committed for queue, offset in taken.items() if offset.committed is not None},
        admin.group_stats(target, topic),
    )


def _changes(targets: Mapping[MessageQueue, int], had: ConsumeStats) -> list[OffsetChange]:
    before = {queue: offset.committed for queue, offset in had.offsets.items()}
    return [
        OffsetChange(queue.topic, queue.broker_name, queue.queue_id, before.get(queue), after)
        for queue, after in targets.items()
    ]

"""Views of a group's offsets, and previews of their changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.remoting.bodies.progress import ConsumeStats
    from cluster.client import Admin, MessageQueue


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a group in one queue.

    Attributes:
        committed: The committed offset.
        end: Offset of the next message of the queue.
        lag: Messages after the committed offset.
        in_flight: Messages that are pulled but not committed.
        last_ms: Store time of the last consumed message in milliseconds since the epoch, or None.
    """

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int
    in_flight: int
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


def progress_in(stats: ConsumeStats) -> list[QueueProgress]:
    """Return the progress in each queue of `stats`."""
    return [
        QueueProgress(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offset.consumer_offset,
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


def preview(admin: Admin, group: str, targets: Mapping[MessageQueue, int]) -> list[OffsetChange]:
    """Return the changes if the offsets of `group` are set to `targets`. Raises `ClientError`."""
    topics = {queue.topic for queue in targets}
    return _changes(targets, admin.group_stats(group, topics.pop() if len(topics) == 1 else None))


def preview_clone(admin: Admin, source: str, target: str, topic: str | None = None) -> list[OffsetChange]:
    """Return the changes if the offsets of group `source` are copied to `target`. Raises `ClientError`."""
    taken = admin.group_stats(source, topic).offsets
    return _changes(
        {queue: offset.consumer_offset for queue, offset in taken.items()}, admin.group_stats(target, topic)
    )


def _changes(targets: Mapping[MessageQueue, int], had: ConsumeStats) -> list[OffsetChange]:
    before = {queue: offset.consumer_offset for queue, offset in had.offsets.items()}
    return [
        OffsetChange(queue.topic, queue.broker_name, queue.queue_id, before.get(queue), after)
        for queue, after in targets.items()
    ]

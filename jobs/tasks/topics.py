"""The topics of task queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from cluster.client.aio import Admin
from cluster.client.errors import BrokerRefused, TopicNotFound
from cluster.views.offsets import known_sum


async def ensure_topics(
    admin: Admin, topics: Iterable[str], queues: int, attributes: Mapping[str, str] | None = None
) -> None:
    """Create those of `topics` that do not exist, with `queues` queues on each broker.

    The right to create topics is needed only if one is missing. Raises ClientError.
    """
    for topic in topics:
        try:
            await admin.route(topic)
        except TopicNotFound:
            await admin.create_topic(topic, queues=queues, attributes=attributes)


async def read_load(admin: Admin, group: str, topic: str) -> tuple[int | None, int | None]:
    """Return the waiting and the running messages of a group, with retries, without those of timers.

    None: unknown. Raises ClientError.
    """
    stats = await admin.group_stats(group, topic)
    with suppress(BrokerRefused):  # the group has not consumed yet
        stats.offsets |= (await admin.group_stats(group)).offsets
    running = known_sum(each.in_flight for each in stats.offsets.values())
    return None if stats.lag is None else max(stats.lag - (running or 0), 0), running

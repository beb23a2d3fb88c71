"""The topics of task queues."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.client.aio import Admin
from cluster.client.errors import TopicNotFound


async def ensure_topics(admin: Admin, topics: Iterable[str], queues: int) -> None:
    """Create those of `topics` that do not exist, with `queues` queues on each broker.

    The right to create topics is needed only if one is missing. Raises ClientError.
    """
    for topic in topics:
        try:
            await admin.route(topic)
        except TopicNotFound:
            await admin.create_topic(topic, queues=queues)

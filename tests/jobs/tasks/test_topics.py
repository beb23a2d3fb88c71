"""ensure_topics creates what is missing, and changes nothing that is there."""

from __future__ import annotations

import asyncio

from cluster.client.aio import Admin
from jobs.tasks.topics import ensure_topics
from tests.cluster.client.conftest import Cluster


def test_missing_topics_are_created_and_others_are_kept(cluster: Cluster) -> None:
    kept = cluster.topic(queues=3)

    async def ensure() -> list[int]:
        async with Admin(cluster.address) as admin:
            await ensure_topics(admin, [kept, "tasks-new"], queues=2)
            routes = [await admin.route(kept), await admin.route("tasks-new")]
            return [len(route.readable) for route in routes]

    assert asyncio.run(ensure()) == [6, 4]  # on both brokers

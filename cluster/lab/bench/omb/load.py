"""Load of a workload: its topics, clients and test."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.client.aio import Admin
from cluster.client.errors import ClientError
from cluster.lab.bench.omb.java_clients import java_clients
from cluster.lab.bench.omb.measuring import measure
from cluster.lab.bench.omb.python_clients import python_clients
from cluster.lab.bench.omb.workload import Workload
from cluster.lab.bench.options import Progress


def run_omb(
    workload: Workload,
    payloads: list[bytes],
    nameservers: str,
    progress: Progress,
    client_jars: Path | None = None,
) -> dict[str, Any]:
    """Run a workload against the cluster at `nameservers` and return its result.

    The topics are new and are deleted at the end. The clients are those of Python in this process, or with
    `client_jars`, a folder with the jars of a RocketMQ release, its Java client. Raises BenchFailed and
    ClientError.
    """
    return asyncio.run(_run(workload, payloads, nameservers, progress, client_jars))


async def _run(
    workload: Workload, payloads: list[bytes], nameservers: str, progress: Progress, client_jars: Path | None
) -> dict[str, Any]:
    prefix = f"omb-{uuid.uuid4().hex[:8]}"
    topics = [f"{prefix}-{number}" for number in range(workload.topics)]
    async with Admin(nameservers) as admin:
        progress(f"creating {workload.topics} topics")
        try:
            for topic in topics:
                await admin.create_topic(topic, queues=workload.partitionsPerTopic)
            if client_jars is None:
                async with python_clients(workload, payloads, nameservers, topics, progress) as clients:
                    return await measure(clients, workload, progress)
            async with java_clients(workload, payloads, nameservers, topics, progress, client_jars) as java:
                return await measure(java, workload, progress)
        finally:
            for topic in topics:
                with suppress(ClientError):
                    await admin.delete_topic(topic)

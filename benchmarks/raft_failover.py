"""Time from a kill −9 of the leader of a Raft group to the first send that its next leader acknowledges.

    uv run python -m benchmarks.raft_failover [--kills 10] [--senders 8]

Three replicas are processes of this machine. One asyncio producer of RayMQ sends without pause, one half of
its senders to a given queue and the other half to any queue. A send counts if it began after the kill. The
killed replica is restarted, and the next leader is killed when it has caught up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import uvloop

from cluster.client import aio
from cluster.client.config import ProducerConfig
from cluster.client.errors import ClientError
from store.message.message_queue import MessageQueue
from tests.eventually import LIMIT_S, eventually_async
from tests.faults.raft.processes import Processes

BODY = bytes(128)
QUEUE = MessageQueue("T", "broker-a", 0)
FLOORS = {"median_s": 3.0, "worst_s": 5.0}


class Senders:
    """Senders of one producer; they continue after a failed send."""

    def __init__(self, producer: aio.Producer, count: int) -> None:
        self._producer = producer
        self._tasks = [asyncio.ensure_future(self._run(QUEUE if each % 2 else None)) for each in range(count)]
        self.acknowledged = 0
        self.failed = 0
        self.killed_s = 0.0
        self.recovered_s = 0.0
        """Time of the first acknowledgement of a send that began after `killed_s`."""

    async def _run(self, queue: MessageQueue | None) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self._producer.send("T", BODY, queue=queue)
            except ClientError:
                self.failed += 1
                continue
            self.acknowledged += 1
            if not self.recovered_s and began_s > self.killed_s:
                self.recovered_s = time.monotonic()

    async def acknowledge(self, count: int) -> None:
        """Wait until `count` more sends are acknowledged."""
        end = self.acknowledged + count
        await eventually_async(lambda: self.acknowledged >= end)

    async def kill(self, pid: int) -> float:
        """Kill a process; return the seconds to the first acknowledgement."""
        self.killed_s, self.recovered_s = time.monotonic(), 0.0
        os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: self.recovered_s)
        return self.recovered_s - self.killed_s

    async def close(self) -> None:
        """Stop sending."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(kills: int, count: int) -> dict[str, object]:
    """Kill the leader `kills` times; return the figures."""
    took: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        async with Processes(Path(root)) as group:
            await group.leader([0, 1, 2])
            config = ProducerConfig(delivery_timeout_ms=int(LIMIT_S * 1000))
            async with aio.Producer(group.nameserver, "PG", config=config) as producer:
                await producer.send("T", BODY)
                senders = Senders(producer, count)
                for _ in range(kills):
                    await senders.acknowledge(1_000)
                    leader = await group.leader([0, 1, 2])
                    took.append(await senders.kill(group.pid(leader)))
                    await group.kill(leader)
                    await group.start(leader)
                    await group.catch_up(leader)
                await senders.close()
    return {
        "seconds": [round(each, 2) for each in took],
        "median_s": round(statistics.median(took), 2),
        "worst_s": round(max(took), 2),
        "acknowledged": senders.acknowledged,
        "failed_sends": senders.failed,
    }


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--senders", type=int, default=8)
    arguments = parser.parse_args()
    figures = uvloop.run(measure(arguments.kills, arguments.senders))
    print(json.dumps({**figures, "floors": FLOORS}, indent=2))


if __name__ == "__main__":
    main()

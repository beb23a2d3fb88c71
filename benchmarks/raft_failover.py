"""Time from a kill −9 of the leader of a Raft group to the first send that its next leader acknowledges.

    uv run python -m benchmarks.raft_failover [--kills 10] [--senders 8] [--timers 0]

Three replicas are processes of this machine. One asyncio producer of RayMQ sends without pause, one half of
its senders to a given queue and the other half to any queue. A send counts if it began after the kill. The
killed replica is restarted, and the next leader is killed when it has caught up.

With `--timers` as many timer messages wait for days meanwhile, and before each kill one is sent that is due a
second after it: `timer_seconds` are the times from the kill until a consumer has this message.
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
from cluster.client.errors import ClientError, TopicNotFound
from store.message.message import Message
from store.message.message_queue import MessageQueue
from tests.eventually import LIMIT_S, eventually_async
from tests.faults.raft.processes import Processes

BODY = bytes(128)
QUEUE = MessageQueue("T", "broker-a", 0)
DUE = MessageQueue("due", "broker-a", 0)
DAY_MS = 86_400_000
DUE_MS = 2_000
FILL_AT_ONCE = 256
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


class Timers:
    """Timer messages: many that wait for days, and single ones that are due soon."""

    def __init__(self, producer: aio.Producer, nameserver: str) -> None:
        self._producer = producer
        self._consumer = aio.PullConsumer(nameserver, "due")
        self._received_s: dict[bytes, float] = {}

    async def fill(self, count: int) -> None:
        """Send `count` messages that are due in one to two days."""
        left = iter(range(count))

        async def send() -> None:
            for number in left:
                delay_ms = DAY_MS + number * DAY_MS // count
                await self._producer.send(Message("later", BODY, delay_ms=delay_ms))

        await asyncio.gather(*(send() for _ in range(FILL_AT_ONCE)))

    async def send(self, body: bytes) -> None:
        """Send a message that is due in DUE_MS."""
        await self._producer.send(Message("due", body, delay_ms=DUE_MS), queue=DUE)

    async def received_s(self, body: bytes) -> float:
        """Return the time at which this message was received."""

        while body not in self._received_s:
            for message in await self._consumer.poll(timeout_ms=100):
                self._received_s.setdefault(message.body, time.monotonic())
        return self._received_s[body]

    async def open(self) -> None:
        """Receive the first message."""
        await self.send(b"first")
        await self._consumer.assign([DUE])
        await self._consumer.seek_to_beginning()
        await self.received_s(b"first")

    async def close(self) -> None:
        """Close the consumer."""
        await self._consumer.close()


async def first_send(producer: aio.Producer) -> None:
    """Create the topic by a send, which is possible when the nameserver knows the leader."""
    while True:
        try:
            await producer.send("T", BODY)
        except TopicNotFound:
            await asyncio.sleep(0.1)
        else:
            return


async def measure(kills: int, count: int, pending: int = 0) -> dict[str, object]:
    """Kill the leader `kills` times while `pending` timer messages wait; return the figures."""
    took: list[float] = []
    timer_took: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        async with Processes(Path(root)) as group:
            await group.leader([0, 1, 2])
            config = ProducerConfig(delivery_timeout_ms=int(LIMIT_S * 1000))
            async with aio.Producer(group.nameserver, "PG", config=config) as producer:
                await first_send(producer)
                timers = Timers(producer, group.nameserver)
                await timers.open()
                await timers.fill(pending)
                senders = Senders(producer, count)
                for _ in range(kills):
                    await senders.acknowledge(1_000)
                    leader = await group.leader([0, 1, 2])
                    body = b"%d" % len(took)
                    await timers.send(body)
                    await asyncio.sleep((DUE_MS - 1_000) / 1_000)
                    killed_s = time.monotonic()
                    took.append(await senders.kill(group.pid(leader)))
                    timer_took.append(await timers.received_s(body) - killed_s)
                    await group.kill(leader)
                    await group.start(leader)
                    await group.catch_up(leader)
                await senders.close()
                await timers.close()
    return {
        "seconds": [round(each, 2) for each in took],
        "median_s": round(statistics.median(took), 2),
        "worst_s": round(max(took), 2),
        "timer_seconds": [round(each, 2) for each in timer_took],
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
    parser.add_argument("--timers", type=int, default=0)
    arguments = parser.parse_args()
    figures = uvloop.run(measure(arguments.kills, arguments.senders, arguments.timers))
    print(json.dumps({**figures, "floors": FLOORS}, indent=2))


if __name__ == "__main__":
    main()

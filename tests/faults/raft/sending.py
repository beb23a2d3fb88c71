"""Producers that send to a Raft group without pause, and what its logs must have afterwards."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cluster.client import ClientError, aio
from cluster.client.config import ProducerConfig
from store.message.message_queue import MessageQueue
from store.tools.verify import verify
from tests.compat.replication.slave import log_files
from tests.eventually import LIMIT_S, eventually_async

QUEUE = MessageQueue("T", "broker-a", 0)


class Sending:
    """Producers that send numbered messages until they are stopped."""

    def __init__(self, producer: aio.Producer, count: int) -> None:
        self.acknowledged: list[bytes] = []
        self._is_over = False
        self._producer = producer
        self._tasks = [asyncio.ensure_future(self._send(name)) for name in range(count)]

    async def _send(self, name: int) -> None:
        number = 0
        while not self._is_over:
            body = b"%d-%06d " % (name, number)
            await self._producer.send("T", body + bytes(500), queue=QUEUE)
            self.acknowledged.append(body)
            number += 1

    async def more(self, count: int = 500) -> None:
        """Wait until `count` more messages are acknowledged than now."""
        wanted = len(self.acknowledged) + count
        await eventually_async(lambda: len(self.acknowledged) >= wanted)

    async def stop(self) -> None:
        """Wait for the sends in flight; all of them must succeed."""
        self._is_over = True
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def sending(nameserver: str, count: int = 8) -> AsyncIterator[Sending]:
    """Send to one queue until the end of the block; `count` sends are in flight."""
    config = ProducerConfig(delivery_timeout_ms=int(LIMIT_S * 1000))
    async with aio.Producer(nameserver, "PG", config=config) as producer:

        async def is_sent() -> bool:  # the leader may not be registered yet
            with suppress(ClientError):
                await producer.send("T", b"creates the topic", queue=QUEUE)
                return True
            return False

        await eventually_async(is_sent)
        sent = Sending(producer, count)
        yield sent
        await sent.stop()


def check_logs(stores: list[Path], acknowledged: list[bytes], end: int | None = None) -> None:
    """Require that all stores have the same log with each of these bodies, and queues that match it.

    With `end`, the logs may differ from there on: replicas that were not stopped at once may do so.
    """
    logs = []
    for store in stores:
        files = log_files(store)
        logs.append(b"".join(files[name].read_bytes() for name in sorted(files)).rstrip(b"\0")[:end])
    assert all(log == logs[0] for log in logs)
    found = set(re.findall(rb"\d+-\d{6} ", logs[0]))
    missing = [body for body in acknowledged if body not in found]
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged are lost: {missing[:10]}"
    for store in stores:
        assert verify(store).findings == []


def stores_of(root: Path) -> list[Path]:
    """Return the stores of the three replicas of a `Group` below `root`."""
    return [root / str(replica) / "store" for replica in range(3)]

"""Consumers that pop and ack while brokers are killed, and note what comes again."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

from actors.transport.client import RemotingClient
from actors.wire.bodies.pops import PopMessageHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from store.common.clock import SystemClock
from store.message.pop_records import NORMAL
from tests.actors.broker.features.pop.pops import GROUP, Popped, ack_header, popped
from tests.eventually import eventually_async
from tests.faults.raft.processes import TIMEOUT_MS

INVISIBLE_MS = 20_000
CONSUMERS = 4


async def until(seconds: float) -> None:
    """Return after this time."""
    end = time.monotonic() + seconds
    await eventually_async(lambda: time.monotonic() >= end)


class Consumers:
    """Consumers that pop at `address` without pause, and ack in any order, some after many seconds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._client = RemotingClient(SystemClock())
        self._is_over = False
        self.address = ""
        self.acked: dict[bytes, float] = {}
        """When each ack was acknowledged."""
        self._again: list[bytes] = []
        self._places: dict[bytes, set[int]] = {}
        self._tasks = [asyncio.ensure_future(self._consume()) for _ in range(CONSUMERS)]
        self._acks: set[asyncio.Task[None]] = set()

    async def _consume(self) -> None:
        header = PopMessageHeader(GROUP, "T", -1, 32, INVISIBLE_MS, 200)
        while not self._is_over:
            began, response = time.monotonic(), await self.ask(RequestCode.POP_MESSAGE, header.to_ext())
            if response is None or response.code != ResponseCode.SUCCESS:
                await until(0.02)
                continue
            for each in popped(response):
                if each.receipt.kind == NORMAL:
                    self._places.setdefault(each.body, set()).add(each.message.queue_offset)
                if self.acked.get(each.body, began) < began:
                    self._again.append(each.body)
                wait_s = self._rng.choice((0.0, 0.0, 0.0, 0.1, 1.0, 13.0)) if self._rng.random() < 0.3 else 0
                task = asyncio.ensure_future(self._ack(each, wait_s))
                self._acks.add(task)
                task.add_done_callback(self._acks.discard)

    async def _ack(self, each: Popped, wait_s: float) -> None:
        deadline = time.monotonic() + INVISIBLE_MS / 1000 - 2
        await until(wait_s)
        while time.monotonic() < deadline:
            response = await self.ask(RequestCode.ACK_MESSAGE, ack_header(each).to_ext())
            if response is not None and response.code == ResponseCode.SUCCESS:
                if time.monotonic() < deadline:
                    self.acked.setdefault(each.body, time.monotonic())
                return
            await until(0.02)

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand | None:
        """Send a request; return None if there is no response."""
        if not self.address:
            return None
        with suppress(RemotingError):
            return await self._client.invoke(self.address, RemotingCommand(code, ext, body), TIMEOUT_MS)
        return None

    @property
    def again(self) -> list[bytes]:
        """The acked messages that a later pop has returned, without those that were sent twice."""
        return [each[:10] for each in self._again if len(self._places[each]) == 1]

    async def more(self, count: int) -> None:
        """Wait until `count` more messages are acked than now."""
        wanted = len(self.acked) + count
        await eventually_async(lambda: len(self.acked) >= wanted)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        for task in self._acks:
            task.cancel()
        await self._client.close()

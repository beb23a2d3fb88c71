"""No acknowledged ack of a popped message is lost when leaders are killed, or hand over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from actors.remoting.bodies.pops import PopMessageHeader
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import RemotingError
from store.clock import SystemClock
from store.message.pop_records import NORMAL
from tests.actors.broker.pop.pops import GROUP, Popped, ack_header, popped
from tests.eventually import eventually_async
from tests.faults.raft.processes import TIMEOUT_MS, Processes
from tests.faults.raft.sending import sending

INVISIBLE_MS = 20_000
CONSUMERS = 4


async def until(seconds: float) -> None:
    """Return after this time."""
    end = time.monotonic() + seconds
    await eventually_async(lambda: time.monotonic() >= end)


class Consumers:
    """Consumers that pop from the leader without pause, and ack in any order, some after many seconds."""

    def __init__(self, group: Processes, rng: random.Random) -> None:
        self._group = group
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

    async def ask(self, code: int, ext: dict[str, str]) -> RemotingCommand | None:
        """Send a request to the leader; return None if it does not respond."""
        if not self.address:
            return None
        with suppress(RemotingError):
            return await self._client.invoke(self.address, RemotingCommand(code, ext), TIMEOUT_MS)
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


@pytest.mark.extended
def test_kills_and_transfers_of_leaders_lose_no_acknowledged_ack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with Processes(tmp_path) as group:
            await group.leader([0, 1, 2])
            async with sending(group.nameserver, 2):
                consumers = Consumers(group, random.Random(43))
                consumers.address = group.address(await group.leader([0, 1, 2]))
                for number in range(8):
                    await consumers.more(300)
                    await until(number % 3 * 3)  # so that some claims are stored
                    leader = await group.leader([0, 1, 2])
                    others = [each for each in range(3) if each != leader]
                    if number % 2:
                        to = {"toReplica": str(others[0])}
                        await consumers.ask(RayMQRequestCode.TRANSFER_LEADERSHIP, to)
                    else:
                        os.kill(group.pid(leader), signal.SIGKILL)
                        await group.kill(leader)
                    consumers.address = group.address(await group.leader(others))
                    await consumers.more(100)
                    if not number % 2:
                        await group.start(leader)
                        await group.catch_up(leader)
            await until(INVISIBLE_MS / 1000 + 2)  # what is to come again comes now
            await consumers.stop()
        with capsys.disabled():
            print(  # noqa: T201 - the figures of docs/faults.md
                f"{len(consumers.acked):,} acks, {len(consumers.again)} of them came again"
            )
        assert consumers.again == []

    uvloop.run(story())

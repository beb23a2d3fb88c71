"""A Java producer with default settings, and one that refreshes its routes each second, at a Raft group."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import uvloop

from cluster.client import aio
from tests.compat.agent import Agent, Facts
from tests.compat.build import CLIENT, JavaKit
from tests.eventually import eventually_async
from tests.faults.raft.processes import Processes

pytestmark = [pytest.mark.java, pytest.mark.extended]  # the default client refreshes its routes every 30 s

ROUTE_MS = 30_000
ALL = [0, 1, 2]


class Sends:
    """Sends of a Java producer, one after another, until `close`."""

    def __init__(self, kit: JavaKit, nameserver: str, home: Path, route_ms: int) -> None:
        settings = (f"-Dcompat.routeMs={route_ms}", "-Dcompat.timeoutMs=3000")
        self.agent = Agent(kit, CLIENT, nameserver, home, jvm=settings)
        self.sent = 0
        self.failed: list[Facts] = []
        self.last_began_s = self.last_ended_s = 0.0
        """When the last successful send began and ended."""
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        with self.agent:
            while True:
                began_s = time.monotonic()
                message = {"topic": "T", "body": "x"}
                (result,) = await asyncio.to_thread(self.agent.send, [message])
                if result.get("status") == "SEND_OK":
                    self.last_began_s, self.last_ended_s = began_s, time.monotonic()
                    self.sent += 1
                else:
                    self.failed.append(result)

    async def more(self, count: int = 50) -> None:
        """Wait for some more successful sends."""
        end = self.sent + count
        await eventually_async(lambda: self.sent >= end)

    async def recovery_s(self, killed_s: float) -> float:
        """Wait for a successful send that began after the kill; return its time since the kill."""
        await eventually_async(lambda: self.last_began_s > killed_s)
        return self.last_ended_s - killed_s

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def move(group: Processes, leader: int, to: int) -> None:
    """Transfer the leadership, and wait until default clients have refreshed their routes."""
    async with aio.Admin(group.nameserver) as admin:
        await admin.transfer_leadership("broker-a", to)
    known_s = time.monotonic() + ROUTE_MS / 1000 + 2
    await eventually_async(lambda: time.monotonic() > known_s)
    assert await group.leader(ALL) == to != leader


async def create_topic(group: Processes) -> None:
    await group.leader(ALL)
    async with aio.Producer(group.nameserver, "PG") as producer:
        await producer.send("T", b"creates the topic")


def test_no_send_of_a_default_producer_fails_in_a_rolling_restart(kit: JavaKit, tmp_path: Path) -> None:
    """The followers are restarted, then the leadership moves, and the former leader is restarted."""

    async def story() -> None:
        async with Processes(tmp_path / "group") as group:
            await create_topic(group)
            sends = Sends(kit, group.nameserver, tmp_path / "java", ROUTE_MS)
            await sends.more()
            leader = await group.leader(ALL)
            followers = [each for each in ALL if each != leader]
            for each in followers:
                await group.restart(each)
            await move(group, leader, followers[0])
            await group.restart(leader)
            await sends.more()
            await sends.close()
            assert sends.failed == []

    uvloop.run(story())


def test_java_producers_continue_after_a_kill_of_the_leader(
    kit: JavaKit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with Processes(tmp_path / "group") as group:
            await create_topic(group)
            quick = Sends(kit, group.nameserver, tmp_path / "quick", 1_000)
            default = Sends(kit, group.nameserver, tmp_path / "default", ROUTE_MS)
            await quick.more()
            await default.more()
            leader = await group.leader(ALL)
            killed_s = time.monotonic()
            os.kill(group.pid(leader), signal.SIGKILL)
            for name, sends in (("1 s", quick), ("30 s", default)):
                took_s = await sends.recovery_s(killed_s)
                text = f"routes every {name}: {took_s:.1f} s after the kill, {len(sends.failed)} failed sends"
                with capsys.disabled():
                    print(text)  # noqa: T201 - the figures of docs/raft-groups.md
            await quick.close()
            await default.close()

    uvloop.run(story())

"""A Raft group in processes of their own: kill −9 and SIGSTOP of the leader while messages are sent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop

from actors.remoting.client import RemotingClient
from actors.remoting.codes import RayMQRequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.limits import RemotingLimits
from actors.remoting.remoting_errors import RemotingError
from cluster.client import aio
from cluster.client.config import ProducerConfig
from store.clock import SystemClock
from store.message.message_queue import MessageQueue
from store.tools.verify import verify
from tests.actors.broker.replication.raft.groups import Group
from tests.compat.replication.slave import log_files
from tests.eventually import LIMIT_S, eventually_async

QUEUE = MessageQueue("T", "broker-a", 0)
REPO = Path(__file__).parents[2]


class Processes(Group):
    """The replicas of a group as processes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._client = RemotingClient(SystemClock(), limits=RemotingLimits(connect_timeout_ms=1_000))

    async def start(self, replica: int) -> None:
        settings = self.settings[replica].model_dump_json()
        self._running[replica] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.broker_process", settings, cwd=REPO
        )
        await eventually_async(lambda: self.described(replica))

    async def stop(self, replica: int) -> None:
        await self.kill(replica)

    async def kill(self, replica: int) -> None:
        process = self._running.pop(replica)
        with suppress(ProcessLookupError):  # the test has killed it
            process.kill()
        await process.wait()

    def pid(self, replica: int) -> int:
        return self._running[replica].pid

    async def close(self) -> None:
        for replica in list(self._running):
            await self.kill(replica)
        await self._client.close()

    async def described(self, replica: int) -> dict[str, Any] | None:
        """Return the figures of a replica; None if it does not respond."""
        address = f"127.0.0.1:{self.settings[replica].listen_port}"
        try:
            response = await self._client.invoke(
                address, RemotingCommand(RayMQRequestCode.DESCRIBE_BROKER), 1_000
            )
        except RemotingError:
            return None
        found: dict[str, Any] = orjson.loads(response.body)
        return found

    async def leader(self, among: list[int]) -> int:
        """Wait until one of the replicas leads, and is registered."""

        async def leading() -> list[int]:
            found = [(each, await self.described(each)) for each in among]
            return [each for each, figures in found if figures and figures["role"] == "master"]

        return (await eventually_async(leading))[0]

    async def is_level(self) -> bool:
        """Return True if all replicas have the same confirmed end."""
        found = [await self.described(each) for each in self._running]
        ends = {(each["written"], each["confirmed"]) for each in found if each is not None}
        return None not in found and len(ends) == 1 and len(set(ends.pop())) == 1


@pytest.mark.extended
def test_kills_and_pauses_of_the_leader_lose_no_acknowledged_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        group = Processes(tmp_path)
        acknowledged: list[bytes] = []
        gaps: list[float] = []
        async with group:
            leader = await group.leader([0, 1, 2])
            await create_topic(group, leader)
            config = ProducerConfig(delivery_timeout_ms=int(LIMIT_S * 1000))
            async with aio.Producer(group.nameserver, "PG", config=config) as producer:
                stopping = False

                async def produce(name: int) -> None:
                    number = 0
                    while not stopping:
                        body = b"%d-%06d " % (name, number)
                        await producer.send("T", body + bytes(500), queue=QUEUE)
                        acknowledged.append(body)
                        number += 1

                senders = [asyncio.ensure_future(produce(name)) for name in range(8)]
                for fault in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                    count = len(acknowledged)
                    await eventually_async(lambda count=count: len(acknowledged) > count + 500)
                    leader = await group.leader([0, 1, 2])
                    others = [each for each in range(3) if each != leader]
                    began = time.monotonic()
                    pid = group.pid(leader)
                    os.kill(pid, fault)
                    await group.leader(others)
                    gaps.append(time.monotonic() - began)
                    if fault == signal.SIGSTOP:
                        os.kill(pid, signal.SIGCONT)  # sends that wait for it fail, and are sent again
                    count = len(acknowledged)
                    await eventually_async(lambda count=count: len(acknowledged) > count)
                    if fault == signal.SIGKILL:
                        await group.kill(leader)
                        await group.start(leader)
                stopping = True
                await asyncio.gather(*senders)
            await eventually_async(group.is_level)
        with capsys.disabled():
            print(f"{len(acknowledged):,} acknowledged; seconds to the next leader: {gaps}")  # noqa: T201 - the figures of docs/replication.md
        await same_logs(tmp_path, acknowledged)

    uvloop.run(story())


async def create_topic(group: Processes, leader: int) -> None:
    await eventually_async(lambda: group.described(leader))
    async with aio.Producer(group.nameserver, "PG") as producer:
        await producer.send("T", b"creates the topic", queue=QUEUE)


async def same_logs(root: Path, acknowledged: list[bytes]) -> None:
    logs = []
    for replica in range(3):
        store = root / str(replica) / "store"
        files = log_files(store)
        logs.append(b"".join(files[name].read_bytes() for name in sorted(files)).rstrip(b"\0"))
    assert logs[0] == logs[1] == logs[2]
    assert len(acknowledged) == sum(body in logs[0] for body in acknowledged)
    for replica in range(3):
        assert verify(root / str(replica) / "store").findings == []

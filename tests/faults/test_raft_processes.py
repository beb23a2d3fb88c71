"""A Raft group in processes of their own: kill −9 and SIGSTOP of the leader while messages are sent."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
import uvloop

from cluster.client import Producer, aio
from cluster.client.config import ProducerConfig
from store.message.message_queue import MessageQueue
from store.tools.verify import verify
from tests.compat.replication.slave import log_files
from tests.eventually import LIMIT_S, eventually_async
from tests.faults.raft_processes import Processes

QUEUE = MessageQueue("T", "broker-a", 0)


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


@pytest.mark.extended
def test_send_in_flight_to_a_paused_leader_moves_to_the_next_one(tmp_path: Path) -> None:
    """The blocking producer waits in the caller's thread, the asyncio one on its event loop."""

    async def story() -> None:
        async with Processes(tmp_path) as group:
            leader = await group.leader([0, 1, 2])
            await create_topic(group, leader)
            config = ProducerConfig(group.nameserver, group="PG", delivery_timeout_ms=1 << 40)
            async with aio.Producer(config=config) as producer:
                with Producer(config=config) as blocking:
                    await producer.send("T", b"connects", queue=QUEUE)
                    await asyncio.to_thread(blocking.send, "T", b"connects", queue=QUEUE)
                    os.kill(group.pid(leader), signal.SIGSTOP)
                    await asyncio.gather(
                        producer.send("T", b"1", queue=QUEUE),
                        producer.send_table("T", pa.table({"body": [b"2"]}), queue=QUEUE),
                        asyncio.to_thread(blocking.send, "T", b"3", queue=QUEUE),
                    )

    uvloop.run(story())

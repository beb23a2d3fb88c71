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
from tests.faults.raft.processes import Processes
from tests.faults.raft.sending import QUEUE, check_logs, sending, stores_of


@pytest.mark.extended
def test_kills_and_pauses_of_the_leader_lose_no_acknowledged_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        gaps: list[float] = []
        async with Processes(tmp_path) as group:
            await group.leader([0, 1, 2])
            async with sending(group.nameserver) as sent:
                for fault in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                    await sent.more()
                    leader = await group.leader([0, 1, 2])
                    others = [each for each in range(3) if each != leader]
                    began = time.monotonic()
                    pid = group.pid(leader)
                    os.kill(pid, fault)
                    await group.leader(others)
                    gaps.append(time.monotonic() - began)
                    if fault == signal.SIGSTOP:
                        os.kill(pid, signal.SIGCONT)  # sends that wait for it fail, and are sent again
                    await sent.more(1)
                    if fault == signal.SIGKILL:
                        await group.kill(leader)
                        await group.start(leader)
            end = await group.await_level()
        with capsys.disabled():
            print(f"{len(sent.acknowledged):,} acknowledged; seconds to the next leader: {gaps}")  # noqa: T201 - the figures of docs/raft-groups.md
        check_logs(stores_of(tmp_path), sent.acknowledged, end)

    uvloop.run(story())


@pytest.mark.extended
def test_send_in_flight_to_a_paused_leader_moves_to_the_next_one(tmp_path: Path) -> None:
    """The blocking producer waits in the caller's thread, the asyncio one on its event loop."""

    async def story() -> None:
        async with Processes(tmp_path) as group:
            leader = await group.leader([0, 1, 2])
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

"""The disk of a replica process is lost under load: it is replaced by command, then a majority needs it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import uvloop

from cluster.client import aio
from cluster.client.config import ProducerConfig
from tests.cluster.cli.test_replica_members import raymq
from tests.eventually import LIMIT_S, eventually_async
from tests.faults.raft_processes import Processes
from tests.faults.test_raft_processes import QUEUE, create_topic, same_logs


@pytest.mark.extended
def test_lost_disk_is_replaced_by_command_under_load(tmp_path: Path) -> None:
    async def story() -> None:
        acknowledged: list[bytes] = []
        async with Processes(tmp_path) as group:
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

                async def until_more() -> None:
                    count = len(acknowledged)
                    await eventually_async(lambda: len(acknowledged) > count + 500)

                senders = [asyncio.ensure_future(produce(name)) for name in range(4)]
                await until_more()
                leader = await group.leader([0, 1, 2])
                lost, other = [each for each in range(3) if each != leader]
                await group.kill(lost)
                shutil.rmtree(group.settings[lost].store_root)
                group.settings[lost] = group.settings[lost].model_copy(update={"raft_members": []})
                await group.start(lost)
                address = f"127.0.0.1:{group.settings[lost].listen_port}"
                code, _, errors = await raymq(group, "replace", "broker-a", str(lost), address, "--yes")
                assert (code, errors) == (0, "")
                await until_more()
                await group.kill(other)
                await until_more()
                await group.start(other)
                stopping = True
                await asyncio.gather(*senders)
            await eventually_async(group.is_level)
        await same_logs(tmp_path, acknowledged)

    uvloop.run(story())

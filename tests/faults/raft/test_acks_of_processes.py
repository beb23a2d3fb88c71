"""No acknowledged ack of a popped message is lost when leaders are killed, or hand over."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
import uvloop

from actors.wire.codes import RayMQRequestCode
from tests.faults.pop_consumers import INVISIBLE_MS, Consumers, until
from tests.faults.raft.processes import Processes
from tests.faults.raft.sending import sending


@pytest.mark.extended
def test_kills_and_transfers_of_leaders_lose_no_acknowledged_ack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with Processes(tmp_path) as group:
            await group.leader([0, 1, 2])
            async with sending(group.nameserver, 2):
                consumers = Consumers(random.Random(43))
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

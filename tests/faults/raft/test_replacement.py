"""The disk of a replica process is lost under load: it is replaced by command, then a majority needs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import uvloop

from tests.cluster.cli.test_replica_members import raymq
from tests.faults.raft.processes import Processes
from tests.faults.raft.sending import check_logs, sending, stores_of


@pytest.mark.extended
def test_lost_disk_is_replaced_by_command_under_load(tmp_path: Path) -> None:
    async def story() -> None:
        async with Processes(tmp_path) as group:
            await group.leader([0, 1, 2])
            async with sending(group.nameserver, 4) as sent:
                await sent.more()
                leader = await group.leader([0, 1, 2])
                lost, other = [each for each in range(3) if each != leader]
                await group.kill(lost)
                shutil.rmtree(group.settings[lost].store_root)
                group.settings[lost] = group.settings[lost].model_copy(update={"raft_members": []})
                await group.start(lost)
                address = f"127.0.0.1:{group.settings[lost].listen_port}"
                code, _, errors = await raymq(group, "replace", "broker-a", str(lost), address, "--yes")
                assert (code, errors) == (0, "")
                await sent.more()
                await group.kill(other)
                await sent.more()
                await group.start(other)
            end = await group.await_level()
        check_logs(stores_of(tmp_path), sent.acknowledged, end)

    uvloop.run(story())

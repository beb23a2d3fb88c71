"""Sessions, each a lite topic, continue in order when the leader of their Raft group is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import uvloop

from tests.faults.lite.lite_sessions import sessions
from tests.faults.raft.processes import Processes


@pytest.mark.faults
@pytest.mark.extended
@pytest.mark.parametrize("count", [200, 10_000])
def test_sessions_continue_in_order_with_the_next_leader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    async def story() -> None:
        async with Processes(tmp_path) as group:
            await group.leader([0, 1, 2])
            async with sessions(group.nameserver, count) as found:
                leader = await group.leader([0, 1, 2])
                os.kill(group.pid(leader), signal.SIGKILL)
                await group.kill(leader)
                await found.more()
        with capsys.disabled():
            print(  # noqa: T201 - the figures of docs/faults.md
                f"{count:,} sessions: outage {found.outage_s:.1f} s, longest wait {found.wait_s:.1f} s"
            )

    uvloop.run(story())

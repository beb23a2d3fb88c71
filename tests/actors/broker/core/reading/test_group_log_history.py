"""The epochs of the log of a Raft group are the terms of its leaders."""

from __future__ import annotations

from pathlib import Path

from actors.broker.core.loop.log_history import GroupLogHistory
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.raymq_requests import FROM_OTHER
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import eventually_async

RETRY, MOVED, NOT_FOUND = (
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_NOT_FOUND,
)


def place(response: RemotingCommand) -> tuple[int, int, str | None]:
    return response.code, int(response.ext["nextBeginOffset"]), response.ext.get("history")


def test_replicas_of_a_group_name_the_same_epochs(tmp_path: Path) -> None:
    """They move no consumer that has read from another one of them, also if they know fewer terms."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            first = await group.send(b"0")
            old = GroupLogHistory(group.peers[first].store).current
            await group.stop(first)
            await group.start(first)
            leader = await group.send(b"1")
            store = group.peers[leader].store
            present = GroupLogHistory(store).current
            begins = int(present.partition("-")[0], 16)
            lost, newer = f"{begins - 1:x}-00000000-g", f"{begins + 1:x}-00000000-g"

            async def has_all(replica: int) -> bool:
                return len(await group.peers[replica].messages("T")) == 2

            for replica, peer in group.peers.items():
                await eventually_async(lambda each=replica: has_all(each))  # type: ignore[misc]
                for named in (old, "", present + FROM_OTHER):
                    assert place(await peer.pull_records("T", 1, history=named)) == (RETRY, 1, present)
                for kept in (present, newer):
                    assert place(await peer.pull_records("T", 2, history=kept)) == (NOT_FOUND, 2, None)
                assert place(await peer.pull_records("T", 2, history=newer + FROM_OTHER)) == (RETRY, 2, newer)
                expected = (MOVED, 1, present) if replica == leader else (NOT_FOUND, 2, None)
                assert place(await peer.pull_records("T", 2, history=lost)) == expected

    run(story)

"""A group is drained and cleaned like a single broker, and its next leader continues."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import orjson
import pytest

from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_deleted_topics import stored, until_equal
from tests.actors.broker.replication.raft.test_joining import SMALL, delete_files
from tests.actors.broker.replication.raft.test_joining import fill as fill_log
from tests.eventually import eventually_async

pytestmark = pytest.mark.extended


async def drain(peer: Peer, step: str) -> RemotingCommand:
    return await peer.ask(RayMQRequestCode.DRAIN_BROKER, {"step": step})


def test_drain_of_a_group_continues_at_the_next_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            await group.send(b"first")
            first, begun = await group.of_leader(partial(drain, step="start"))
            assert orjson.loads(begun.body)["state"] == "draining"
            group.isolate(first)
            others = [each for each in range(3) if each != first]

            async def is_closed() -> bool:  # a send would delay it
                _, progress = await group.of_leader(partial(drain, step="look"), others)
                return bool(orjson.loads(progress.body)["state"] == "closed")

            await eventually_async(is_closed)
            _, refused = await group.of_leader(partial(Peer.send, topic="T"), others)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "is being drained" in str(refused.remark)
            group.heal()
            _, ended = await group.of_leader(partial(drain, step="cancel"), others)
            assert orjson.loads(ended.body)["state"] == "active"
            states = [peer.broker.drain for peer in group.peers.values()]
            await eventually_async(lambda: not any(each.is_held for each in states))
            await group.send(b"second")

    run(story)


def test_cleaning_a_group_removes_no_queue(tmp_path: Path) -> None:
    """All messages of T are deleted on all replicas; the next one continues its queue offsets."""

    async def story() -> None:
        async with Group(tmp_path, **SMALL) as group:
            leader = await fill_log(group, 4)
            for _ in range(6):
                _, sent = await group.of_leader(partial(Peer.send, topic="Later", body=bytes(4000)))
                assert sent.code == ResponseCode.SUCCESS, sent.remark
            await until_equal(group, leader)
            await delete_files(group, 4 * SMALL["commit_log_file_bytes"])
            for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
                _, cleaned = await group.of_leader(partial(Peer.ask, code=code))
                assert cleaned.code == ResponseCode.SUCCESS, cleaned.remark
            _, sent = await group.of_leader(partial(Peer.send, topic="T", body=b"next"))
            assert sent.ext["queueOffset"] >= "4"
            end = int(sent.ext["queueOffset"]) + 1
            for each in range(3):
                await eventually_async(lambda each=each: stored(group, each)["T", 0] == end)  # type: ignore[misc]

    run(story)

"""Topics, groups, offsets and locks of a group survive the loss of its leader."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.wire.admin_headers import ResetOffsetHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_joining import SMALL, confirmed, flip
from tests.actors.broker.replication.raft.test_member_change import added, changed
from tests.eventually import eventually_async


def tables(group: Group, replica: int) -> dict[str, Any]:
    """What a replica has of the tables that the test changes."""
    found = group.peers[replica].tables
    topics, groups = found.topics.table.topics, found.groups.table.groups
    return {
        "topics": {name: topic.to_json() for name, topic in topics.items() if not name.startswith("rmq_sys")},
        "groups": {name: each.to_json() for name, each in groups.items()},
        "modes": found.request_modes.table.to_json(),
        "offsets": {key: queues for key, queues in found.offsets.table.offsets.items() if queues},
    }


async def create_topic(peer: Peer, name: str, queues: int) -> RemotingCommand:
    header = CreateTopicHeader(name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())


async def create_group(peer: Peer, name: str) -> RemotingCommand:
    body = orjson.dumps({"groupName": name, "retryMaxTimes": 3})
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def delete_group(peer: Peer, name: str) -> RemotingCommand:
    return await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name, "cleanOffset": "true"})


async def set_mode(peer: Peer, topic: str, group: str) -> RemotingCommand:
    body = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 1}
    return await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=orjson.dumps(body))


async def commit(peer: Peer, group: str, topic: str, offset: int) -> RemotingCommand:
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    return await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def test_acknowledged_definitions_and_offsets_survive_the_loss_of_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            for ask in (
                partial(create_topic, name="orders", queues=7),
                partial(create_group, name="audit"),
                partial(create_group, name="gone"),
                partial(delete_group, name="gone"),
                partial(set_mode, topic="orders", group="audit"),
            ):
                first, response = await group.of_leader(ask)
                assert response.code == ResponseCode.SUCCESS, response.remark
            first = await group.send(b"creates topic T")
            _, response = await group.of_leader(partial(commit, group="audit", topic="T", offset=1))
            assert response.code == ResponseCode.SUCCESS, response.remark
            wanted = tables(group, first)
            assert wanted["offsets"]["T@audit"] == {0: 1}
            others = [each for each in range(3) if each != first]
            for each in others:  # by the log, within a second or two
                await eventually_async(lambda each=each: tables(group, each) == wanted)  # type: ignore[misc]

            group.isolate(first)
            lost = await create_topic(group.peers[first], "lost", 1)
            assert lost.code == ResponseCode.SERVICE_NOT_AVAILABLE
            second, _ = await group.of_leader(partial(create_topic, name="later", queues=2), others)
            assert tables(group, second)["topics"].keys() - wanted["topics"].keys() == {"later"}
            group.heal()
            await eventually_async(lambda: tables(group, first) == tables(group, second))

            await group.stop(second)
            await group.start(second)
            wanted = tables(group, first)
            await eventually_async(lambda: tables(group, second) == wanted)

    run(story)


def test_queue_locks_survive_the_loss_of_the_leader(tmp_path: Path) -> None:
    async def lock(peer: Peer, client: str) -> RemotingCommand:
        queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
        body = {"consumerGroup": "ordered", "clientId": client, "mqSet": [queue]}
        return await peer.ask(RequestCode.LOCK_BATCH_MQ, body=orjson.dumps(body))

    def locked(response: RemotingCommand) -> int:
        assert response.code == ResponseCode.SUCCESS, response.remark
        return len(orjson.loads(bytes(response.body))["lockOKMQSet"])

    async def story() -> None:
        async with Group(tmp_path) as group:
            await group.send(b"creates topic T")
            first, response = await group.of_leader(partial(lock, client="one"))
            assert locked(response) == 1
            group.isolate(first)
            others = [each for each in range(3) if each != first]
            _, response = await group.of_leader(partial(lock, client="two"), others)
            assert locked(response) == 0
            _, response = await group.of_leader(partial(lock, client="one"), others)
            assert locked(response) == 1

    run(story)


def test_a_full_set_is_logged_before_the_oldest_file_can_be_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path, commit_log_file_bytes=1 << 16) as group:
            first, _ = await group.of_leader(partial(create_topic, name="orders", queues=7))
            for _ in range(9):
                first = await group.send(bytes(10_000))

            log = group.peers[first].store
            await eventually_async(lambda: b'"full":"begin"' in bytes(log.log_bytes(1 << 16, 1 << 16)))

    run(story)


def test_a_damaged_record_of_tables_is_applied_after_its_repair(tmp_path: Path) -> None:
    """The replica starts without it, gets it from the leader, and then applies it and the later ones."""

    async def story() -> None:
        async with Group(tmp_path, **SMALL) as group:
            first, _ = await group.of_leader(partial(create_topic, name="orders", queues=7))
            other = (first + 1) % 3
            await eventually_async(lambda: tables(group, other) == tables(group, first))
            place = confirmed(group, first).index(b'["topic","orders"')
            await group.stop(other)
            (group.root(other) / "config" / "raymqGroupTables.json").unlink(missing_ok=True)
            (group.root(other) / "config" / "raymqGroupTables.json.bak").unlink(missing_ok=True)
            (group.root(other) / "config" / "topics.json").unlink()
            (group.root(other) / "config" / "topics.json.bak").unlink(missing_ok=True)
            flip(group, other, place)
            await group.start(other)
            await group.of_leader(partial(create_topic, name="later", queues=2), group.peers)
            leader = next(each for each in range(3) if each != other)
            await eventually_async(lambda: tables(group, other) == tables(group, leader))

    run(story)


@pytest.mark.extended
def test_reset_of_offsets_waits_for_the_next_pull_at_the_next_leader(tmp_path: Path) -> None:
    """Until its next pull the consumer does not know of the reset, and its commits are ignored."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            for number in range(3):
                await group.send(b"%d" % number)
            await group.of_leader(partial(create_group, name="CG"))
            await group.of_leader(partial(commit, group="CG", topic="T", offset=3))
            ext = ResetOffsetHeader("T", "CG", queue_id=0, offset=1).to_ext()
            ask = partial(Peer.ask, code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext)
            first, reset = await group.of_leader(ask)
            assert reset.code == ResponseCode.SUCCESS, reset.remark
            group.isolate(first)
            others = [each for each in range(3) if each != first]
            ignored = partial(commit, group="CG", topic="T", offset=3)
            second, response = await group.of_leader(ignored, others)
            assert response.code == ResponseCode.SUCCESS, response.remark
            assert (await group.peers[second].committed("CG", "T")).ext["offset"] == "1"
            pulled = await group.peers[second].pull("T", 3)
            assert pulled.ext["nextBeginOffset"] == "1"
            await group.of_leader(partial(commit, group="CG", topic="T", offset=2), [second])
            assert (await group.peers[second].committed("CG", "T")).ext["offset"] == "2"

    run(story)


@pytest.mark.extended
def test_replica_that_joins_has_all_tables(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            for ask in (
                partial(create_topic, name="orders", queues=7),
                partial(create_group, name="audit"),
                partial(create_group, name="gone"),
                partial(delete_group, name="gone"),
                partial(set_mode, topic="orders", group="audit"),
                partial(commit, group="audit", topic="orders", offset=0),
            ):
                leader, response = await group.of_leader(ask)
                assert response.code == ResponseCode.SUCCESS, response.remark
            new = await group.start_new(3)
            await changed(group, **added(group, new))
            await eventually_async(lambda: tables(group, 3) == tables(group, leader))
            assert tables(group, 3)["topics"]["orders"]["readQueueNums"] == 7

    run(story)

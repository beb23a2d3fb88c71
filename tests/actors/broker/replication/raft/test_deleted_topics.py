"""A topic that is deleted in a group is deleted at the same place of each replica's log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.broker.replication.raft.renewal import require_rebuild
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from store.message.record import RecordDraft
from store.message_store import AppendResult
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_joining import confirmed
from tests.actors.broker.replication.raft.test_tables_of_group import commit, create_topic, set_mode, tables
from tests.eventually import eventually_async


async def delete(peer: Peer, topic: str) -> RemotingCommand:
    return await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


async def delete_topic(group: Group, topic: str = "T") -> int:
    leader, response = await group.of_leader(partial(delete, topic=topic), group.peers)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return leader


def stored(group: Group, replica: int) -> dict[tuple[str, int], int]:
    """The queues of the topics of users, with their next offsets."""
    store = group.peers[replica].store
    return {queue: store.max_offset(*queue) for queue in store.queues() if not queue[0].startswith("rmq_sys")}


def all_of(group: Group, replica: int) -> dict[str, Any]:
    return {**tables(group, replica), "queues": stored(group, replica)}


async def until_equal(group: Group, leader: int) -> dict[str, Any]:
    """Wait until all replicas that run have the same log, tables and queues as the leader; return these."""

    def are_equal() -> bool:
        wanted, log = all_of(group, leader), confirmed(group, leader)
        return all(confirmed(group, each) == log and all_of(group, each) == wanted for each in group.peers)

    await eventually_async(are_equal)
    return all_of(group, leader)


async def fill(group: Group) -> int:
    """Send messages to three queues of T, commit an offset and set a mode."""
    for queue_id in (0, 0, 0, 1, 2):
        leader, sent = await group.of_leader(
            partial(Peer.send, topic="T", body=b"old", queue_id=queue_id), group.peers
        )
        assert sent.code == ResponseCode.SUCCESS, sent.remark
    await group.of_leader(partial(commit, group="audit", topic="T", offset=2), group.peers)
    await group.of_leader(partial(set_mode, topic="T", group="audit"), group.peers)
    return leader


async def new_bodies(group: Group, replica: int) -> list[bytes]:
    """The bodies in T, which begins at queue offset 0, in its only queue; repeated sends count once."""
    assert stored(group, replica).keys() == {("T", 0)}
    messages = await group.peers[replica].messages("T")
    assert [message.queue_offset for message in messages] == [*range(len(messages))]
    return list(dict.fromkeys(message.body for message in messages))


def assert_gone(found: dict[str, Any]) -> None:
    assert "T" not in found["topics"]
    assert "T" not in str((found["modes"], found["offsets"]))
    assert found["queues"] == {}


def test_deleted_topic_begins_at_0_again_on_all_replicas(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            await until_equal(group, await fill(group))
            assert_gone(await until_equal(group, await delete_topic(group)))

            for body in (b"new", b"newer"):
                leader = await group.send(body)
            await until_equal(group, leader)
            for each in range(3):
                assert await new_bodies(group, each) == [b"new", b"newer"]

    run(story)


@pytest.mark.extended
@pytest.mark.parametrize("is_rebuilt", [False, True], ids=["restart", "rebuild"])
def test_replica_that_was_down_or_rebuilt_has_the_same_queues(tmp_path: Path, is_rebuilt: bool) -> None:
    """Its files of tables have the topic, too: it was stopped before it saved the deletion."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            other = (await fill(group) + 1) % 3
            if not is_rebuilt:
                await group.stop(other)
            await delete_topic(group)
            for queue_id in (0, 2):
                ask = partial(Peer.send, topic="T", body=b"new", queue_id=queue_id)
                leader, sent = await group.of_leader(ask, group.peers)
                assert sent.code == ResponseCode.SUCCESS, sent.remark
            await delete_topic(group)
            await group.of_leader(partial(create_topic, name="T", queues=2), group.peers)
            leader = await group.send(b"last", group.peers)
            if is_rebuilt:
                await until_equal(group, leader)
                await group.stop(other)
                require_rebuild(group.root(other))
            await group.start(other)
            await until_equal(group, leader)
            for each in range(3):
                assert await new_bodies(group, each) == [b"last"]

    run(story)


@pytest.mark.extended
def test_saved_tables_do_not_bring_a_deleted_topic_back(tmp_path: Path) -> None:
    """A killed replica may have saved the tables of its group, but not RocketMQ's files."""

    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await fill(group)
            other = (leader + 1) % 3
            await until_equal(group, leader)
            config = group.root(other) / "config"
            await group.stop(other)
            kept = {path: path.read_bytes() for path in config.iterdir() if "raymq" not in path.name}
            await group.start(other)
            leader = await delete_topic(group)
            await until_equal(group, leader)
            await group.stop(other)
            for path, content in kept.items():
                path.write_bytes(content)
            await group.start(other)
            assert_gone(await until_equal(group, leader))
            await group.stop(leader)
            second, _ = await group.of_leader(partial(create_topic, name="later", queues=1), group.peers)
            assert_gone(await until_equal(group, second))

    run(story)


@pytest.mark.extended
def test_deletion_that_was_not_confirmed_is_undone(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await fill(group)
            wanted = await until_equal(group, leader)
            group.isolate(leader)
            lost = await delete(group.peers[leader], "T")
            assert lost.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
            others = [each for each in range(3) if each != leader]
            second, _ = await group.of_leader(partial(set_mode, topic="T", group="later"), others)
            group.heal()
            found = await until_equal(group, second)
            assert (found["topics"], found["offsets"], found["queues"]) == (
                wanted["topics"], wanted["offsets"], wanted["queues"]
            )  # fmt: skip

    run(story)


@pytest.mark.extended
def test_deletion_that_cannot_be_logged_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await fill(group)
            wanted = await until_equal(group, leader)

            def full(draft: RecordDraft) -> AppendResult:
                raise StoreError(f"no space for {draft.topic}")

            with monkeypatch.context() as patch:
                for each in range(3):
                    patch.setattr(group.peers[each].store, "append", full)
                response = await delete(group.peers[leader], "T")
                assert response.code == ResponseCode.SYSTEM_ERROR
                assert "the change is not replicated" in str(response.remark)
                assert all_of(group, leader) == wanted
            assert_gone(await until_equal(group, await delete_topic(group)))

    run(story)

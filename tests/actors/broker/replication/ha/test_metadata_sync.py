"""A slave's tables become copies of its master's, each in one step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from actors.broker.core.role import Role
from actors.broker.replication.ha import metadata_sync
from actors.broker.replication.ha.metadata_sync import MetadataSync
from actors.broker.replication.tables.table_specs import TABLES, copies_of
from actors.transport.client import RemotingClient
from actors.wire.bodies.locks import LockedQueues, LockRequest
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader, DeleteTopicHeader, QueryConsumerOffsetHeader
from actors.wire.raymq_requests import CommitOffsetsBody, CommitOffsetsReply, OffsetCommit
from actors.wire.remoting_errors import RemotingError
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from store.ownership.first_copy import COPYING_FILE, begin_first_copy, refuse_first_copy
from store.store_errors import StoreError
from store.timer.timer_checkpoint import TimerCheckpoint
from tests.actors.broker.brokers import A_DAY_MS, Peer, run
from tests.actors.broker.replication.ha.ha_port import HaPort
from tests.actors.broker.replication.ha.test_ha_client import Following, broker, until_equal
from tests.eventually import eventually_async


@asynccontextmanager
async def pair(root: Path) -> AsyncIterator[tuple[Peer, Peer, MetadataSync]]:
    """Yield a master, a slave and the copying of the tables."""
    async with (
        broker(root / "m") as master,
        broker(root / "s", role="slave", slave_read_enable=True) as slave,
    ):
        yield master, slave, sync_of(slave, slave.client)


def sync_of(slave: Peer, client: RemotingClient, master: str = "") -> MetadataSync:
    graph, clock = slave.broker.graph, SystemClock()
    parts: Any = SimpleNamespace(
        clock=clock,
        loop=graph.loop,
        tables=graph.tables,
        groups=graph.groups,
        access=graph.access,
        specs=TABLES,
    )
    return MetadataSync(client, clock, graph.loop.store, copies_of(parts), lambda: master)


async def create_topic(peer: Peer, name: str, queues: int) -> None:
    header = CreateTopicHeader(name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0


def test_all_tables_are_copied_and_saved(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "T", 3)
            await master.commit("CG", "T", 42, 1)
            master.tables.delay_offsets.move(3, 17)
            master.tables.delay_offsets.settle(written=0, safe=0)
            mode = {"topic": "T", "consumerGroup": "CG", "mode": "PULL", "popShareQueueNum": 0}
            body = orjson.dumps(mode)
            assert (await master.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)).code == 0
            await sync.copy_from(master.broker.address)
            for code in (
                RequestCode.GET_ALL_TOPIC_CONFIG,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                RequestCode.GET_ALL_DELAY_OFFSET,
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            ):
                theirs, ours = await master.ask(code), await slave.ask(code)
                assert orjson.loads(ours.body) == orjson.loads(theirs.body), code.name
            assert (await slave.committed("CG", "T", 1)).ext["offset"] == "42"
        saved = {path.name: path.read_bytes() for path in (tmp_path / "s/store/config").iterdir()}
        assert b'"T"' in saved["topics.json"]
        assert b'"CG"' in saved["subscriptionGroup.json"]
        assert b"42" in saved["consumerOffset.json"]
        assert b"17" in saved["delayOffset.json"]
        assert b'"CG"' in saved["messageRequestMode.json"]

    run(story)


def test_slave_continues_a_queue_of_which_the_masters_log_has_no_record(tmp_path: Path) -> None:
    async def story() -> None:
        file_bytes, small = 1 << 14, {"commit_log_file_bytes": 1 << 14, "delete_files_interval_ms": 0}
        async with (
            broker(tmp_path / "m", small) as master,
            broker(tmp_path / "s", small, role="slave", slave_read_enable=True) as slave,
        ):
            for topic, count, body in (("T", 3, b"old"), ("Later", 8, bytes(7000))):
                for _ in range(count):
                    assert (await master.send(topic, body)).code == ResponseCode.SUCCESS
            theirs, ours = (peer.store for peer in (master, slave))
            await eventually_async(lambda: theirs.positions.dispatched == theirs.positions.written)

            def has_deleted() -> bool:
                theirs.retention.delete_before(2 * file_bytes)
                master.loop.server.request_tick()
                return theirs.positions.min == 2 * file_bytes

            await eventually_async(has_deleted)
            begin_first_copy(ours.root)
            sync = sync_of(slave, slave.client)
            await sync.copy_from(master.broker.address)
            for at in range(2 * file_bytes, theirs.positions.written, file_bytes):
                ours.append_raw(at, bytes(theirs.log_bytes(at, file_bytes)))
            progress = "GET_ALL_CONSUMER_OFFSET, GET_ALL_DELAY_OFFSET, GET_TIMER_CHECK_POINT, GET_QUEUE_ENDS"
            assert sync.missing == progress
            with pytest.raises(StoreError, match=rf"{COPYING_FILE}.*role: slave.*delete the file"):
                refuse_first_copy(ours.root)

            async def has_the_end() -> bool:  # when it has confirmed and dispatched the log
                slave.loop.server.request_tick()
                await sync.copy_from(master.broker.address)
                return ours.max_offset("T", 0) == 3

            await eventually_async(has_the_end)
            assert ours.max_offset("Later", 0) == 8
            assert sync.missing == ""
            refuse_first_copy(ours.root)
            await slave.role.become(Role.MASTER, 1)
            assert (await slave.send("T", b"new")).ext["queueOffset"] == "3"
            await eventually_async(lambda: slave.messages("T", 3))

    run(story)


def test_deleted_topic_ends_held_pulls_and_loses_its_queues(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "Old", 1)
            await sync.copy_from(master.broker.address)
            role = slave.role
            await role.become(Role.MASTER, 1)
            await slave.send("Old")
            await role.become(Role.SLAVE, 1)
            held = asyncio.create_task(slave.pull("Old", 1, wait_ms=60_000))
            await slave.until_held(1)
            await master.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("Old").to_ext())
            await sync.copy_from(master.broker.address)
            assert (await held).code == ResponseCode.TOPIC_NOT_EXIST
            assert "Old" not in {topic for topic, _ in slave.store.queues()}

    run(story)


def test_slave_never_lacks_a_topic_while_tables_are_copied(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "T", 1)
            await sync.copy_from(master.broker.address)
            topics, copies = slave.tables.topics, 0
            missing: list[int] = []

            async def watch() -> None:
                while copies < 20:
                    if topics.find("T") is None:
                        missing.append(copies)
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            for copies in range(1, 21):
                await create_topic(master, f"T{copies}", 1)
                await sync.copy_from(master.broker.address)
            await watching
            assert missing == []
            assert topics.find("T20") is not None

    run(story)


def test_progress_waits_until_the_slave_has_the_log_of_its_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "T", 1)
            await master.send("T")
            for group in ("CG", "CID_RMQ_SYS_TRANS"):
                await master.commit(group, "T", 1)
            master.tables.delay_offsets.move(3, 17)
            master.tables.delay_offsets.settle(written=0, safe=0)
            progress = (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET)
            before = [orjson.loads((await slave.ask(code)).body) for code in progress]
            await sync.copy_from(master.broker.address)
            assert slave.tables.topics.find("T") is not None
            assert [orjson.loads((await slave.ask(code)).body) for code in progress] == before
            timer = slave.store.root / "config" / "timercheck"
            assert not timer.exists()
            async with HaPort(master.store) as port:
                follower = Following(slave, master, port.address)
                await until_equal(master, slave)
                follower.task.cancel()
            await sync.copy_from(master.broker.address)
            for code in progress:
                theirs, ours = await master.ask(code), await slave.ask(code)
                assert orjson.loads(ours.body) == orjson.loads(theirs.body), code.name
            assert (await slave.committed("CID_RMQ_SYS_TRANS", "T")).ext["offset"] == "1"
            theirs = await master.ask(RequestCode.GET_TIMER_CHECK_POINT)
            copied = TimerCheckpoint.read(timer)
            assert copied is not None
            assert copied.last_read_ms == TimerCheckpoint.decode(theirs.body).last_read_ms > 0

    run(story)


class WithoutTopics(RemotingClient):
    """A client to whose requests for the topics the master responds with a body that is not a table."""

    async def ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if command.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            return RemotingCommand.response(body=b'{"topicConfigTable": 1}')
        return await super().ask(address, command, timeout_ms)


def test_table_that_cannot_be_copied_does_not_stop_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path / "m") as master, broker(tmp_path / "s", role="slave") as slave:
            await create_topic(master, "T", 1)
            await master.commit("CG", "T", 7)
            client = WithoutTopics(SystemClock())
            sync = sync_of(slave, client)
            before = slave.tables.topics.table.topics.keys()
            await sync.copy_from(master.broker.address)
            assert slave.tables.topics.table.topics.keys() == before
            assert (await slave.committed("CG", "T")).ext["offset"] == "7"
            await client.close()

    run(story)


async def commit_fenced(peer: Peer, offset: int, generation: int) -> CommitOffsetsReply:
    body = CommitOffsetsBody("CG", "c", [OffsetCommit("T", 0, offset, generation)]).encode()
    return CommitOffsetsReply.decode((await peer.ask(RayMQRequestCode.COMMIT_OFFSETS, body=body)).body)


def test_promoted_slave_fences_a_former_owner(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "T", 1)
            await commit_fenced(master, 1, generation=5)
            claim = {**QueryConsumerOffsetHeader("CG", "T", 0).to_ext(), "generation": "7"}
            assert (await master.ask(RequestCode.QUERY_CONSUMER_OFFSET, claim)).code == 0
            await sync.copy_from(master.broker.address)
            await slave.role.become(Role.MASTER, 1)
            (refused,) = (await commit_fenced(slave, 9, generation=5)).refused
            assert refused.generation == 7
            assert (await commit_fenced(slave, 9, generation=7)).refused == []
        assert b"7" in (tmp_path / "s/store/config/raymqGenerations.json").read_bytes()

    run(story)


async def lock(peer: Peer, client_id: str) -> list[int]:
    """Lock queue 0 of the topic T; return the ids of the queues that the client holds now."""
    body = LockRequest("CG", client_id, [MessageQueue("T", "broker-a", 0)]).encode()
    response = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)
    assert response.code == 0, response.remark
    return [queue.queue_id for queue in LockedQueues.decode(response.body).queues]


def test_promoted_slave_locks_no_queue_for_a_second_consumer(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, _, sync):
            await create_topic(master, "T", 1)
            assert await lock(master, "one") == [0]
            await sync.copy_from(master.broker.address)
        async with broker(tmp_path / "s") as promoted:
            assert await lock(promoted, "two") == []
            assert await lock(promoted, "one") == [0]

    run(story)


def test_released_lock_is_released_on_the_slave(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "T", 1)
            await lock(master, "one")
            await sync.copy_from(master.broker.address)
            body = LockRequest("CG", "one", [MessageQueue("T", "broker-a", 0)]).encode()
            await master.ask(RequestCode.UNLOCK_BATCH_MQ, body=body)
            await sync.copy_from(master.broker.address)
            await slave.role.become(Role.MASTER, 1)
            assert await lock(slave, "two") == [0]
        async with broker(tmp_path / "s") as restarted:
            assert await lock(restarted, "three") == [0]

    run(story)


class OtherAnswer(RemotingClient):
    """A client that gets a given response to one request code."""

    def __init__(self, code: int, response: RemotingCommand) -> None:
        super().__init__(SystemClock())
        self.code, self.response = code, response

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send the request, or return the given response."""
        is_other = command.code == self.code
        return self.response if is_other else await super().invoke(address, command, timeout_ms)


class LikeRocketMQ(RemotingClient):
    """A client whose master responds as RocketMQ's do: no table while it is empty, none of RayMQ's tables."""

    is_lost = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send the request, refuse it, or fail if the connection is lost."""
        if self.is_lost:
            raise RemotingError(address, "the connection was lost")
        if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "No delay offset in this broker")
        if command.code in RayMQRequestCode:
            return RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return await super().invoke(address, command, timeout_ms)


def test_table_that_a_rocketmq_master_lacks_counts_after_each_connection(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, _):
            root, client = slave.store.root, LikeRocketMQ(SystemClock())
            sync = sync_of(slave, client)
            begin_first_copy(root)
            client.is_lost = True
            await sync.copy_from(master.broker.address)
            assert "GET_ALL_DELAY_OFFSET" in sync.missing
            client.is_lost = False
            for _ in range(2):
                sync.request()
                assert "GET_ALL_DELAY_OFFSET" in sync.missing
                await sync.copy_from(master.broker.address)
                assert sync.missing == ""
                refuse_first_copy(root)
                begin_first_copy(root)
            await client.close()

    run(story)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RayMQRequestCode.GET_ALL_GENERATIONS, b"{}"),
        (RayMQRequestCode.GET_ALL_GENERATIONS, b"garbage"),
        (RayMQRequestCode.GET_ALL_GENERATIONS, b'{"generations": {"T@CG": {"0": -1}}}'),
        (RayMQRequestCode.GET_ALL_GENERATIONS, b'{"generations": {"T@CG": {"0": 9223372036854775808}}}'),
        (RayMQRequestCode.GET_ALL_GENERATIONS, b'{"generations": {"T@CG": {"2147483648": 1}}}'),
        (RayMQRequestCode.GET_ALL_QUEUE_LOCKS, b"{}"),
        (RayMQRequestCode.GET_ALL_QUEUE_LOCKS, b'{"locks": [["CG", "one", "T", "broker-a", 0, 1]]}'),
        (RayMQRequestCode.GET_ALL_QUEUE_LOCKS, b'{"locks": [["CG", "one", "T", "broker-a", 0, 1, -5]]}'),
        (RayMQRequestCode.GET_QUEUE_ENDS, b'{"position": 0}'),
        (RayMQRequestCode.GET_QUEUE_ENDS, b'{"position": 0, "queueEnds": {"T": [[0, -1]]}}'),
    ],
    ids=[
        "no-table",
        "no-json",
        "negative",
        "beyond-long",
        "queue-beyond-int",
        "no-locks",
        "short-lock",
        "expired-lock",
        "no-ends",
        "negative-end",
    ],
)
def test_garbage_from_a_master_replaces_no_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: RayMQRequestCode, body: bytes
) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, sync):
            await create_topic(master, "T", 1)
            await commit_fenced(master, 1, generation=5)
            assert await lock(master, "one") == [0]
            await sync.copy_from(master.broker.address)
            client = OtherAnswer(code, RemotingCommand.response(body=body))
            await sync_of(slave, client).copy_from(master.broker.address)
            await client.close()
            assert slave.tables.offsets.generation("CG", "T", 0) == 5
            (locks,) = slave.groups.locks.held()
            assert [each.owner for each in locks] == ["one"]

    run(story)
    assert f"metadata_copy_failed request={code.name!r}" in caplog.text


class Requests(RemotingClient):
    """A client that notes the codes of its requests."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.codes: list[int] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Note the code and send the request."""
        self.codes.append(command.code)
        return await super().invoke(address, command, timeout_ms)


def test_only_changed_tables_are_copied_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, _):
            client = Requests()
            sync = sync_of(slave, client)

            async def copied_after(change: Awaitable[object]) -> list[int]:
                await change
                client.codes.clear()
                await sync.copy_changed(master.broker.address)
                return client.codes[1:]

            await sync.copy_changed(master.broker.address)
            assert await copied_after(asyncio.sleep(0)) == []
            topics = [RequestCode.GET_ALL_TOPIC_CONFIG]
            assert await copied_after(create_topic(master, "T", 1)) == topics
            assert slave.tables.topics.find("T") is not None
            locks = [RayMQRequestCode.GET_ALL_QUEUE_LOCKS]
            assert await copied_after(lock(master, "one")) == locks
            assert await copied_after(lock(master, "one")) == [], "a renewal is no change"
            groups = [RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
            generations = [RayMQRequestCode.GET_ALL_GENERATIONS]
            assert await copied_after(commit_fenced(master, 1, generation=5)) == groups + generations
            assert await copied_after(commit_fenced(master, 2, generation=5)) == []
            await client.close()

    run(story)


def test_changes_reach_the_slave_before_the_next_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_sync, "SYNC_INTERVAL_MS", A_DAY_MS)
    monkeypatch.setattr(metadata_sync, "POLL_INTERVAL_MS", 10)

    async def story() -> None:
        async with pair(tmp_path) as (master, slave, _):
            sync = sync_of(slave, slave.client, master.broker.address)
            running = asyncio.create_task(sync.run())
            for name in ("T", "U"):
                await create_topic(master, name, 1)
                await eventually_async(lambda name=name: slave.tables.topics.find(name) is not None)
            running.cancel()

    run(story)


def test_master_without_versions_is_not_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with pair(tmp_path) as (master, slave, _):
            unknown = RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            client = OtherAnswer(RayMQRequestCode.GET_TABLE_VERSIONS, unknown)
            sync = sync_of(slave, client)
            with caplog.at_level(logging.INFO):
                for _ in range(2):
                    await sync.copy_changed(master.broker.address)
                assert caplog.text.count("metadata_not_offered") == 1
                sync.request()
                await sync.copy_changed(master.broker.address)
                assert caplog.text.count("metadata_not_offered") == 2, "the master may have been upgraded"
            await client.close()

    run(story)

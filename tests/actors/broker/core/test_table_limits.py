"""Limits of what clients may create: topics, groups, locks, memberships; registration of many topics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from actors.broker.core.group import clients as clients_module
from actors.broker.core.group import queue_locks
from actors.broker.core.metadata import consumer_offsets
from actors.broker.core.metadata import tables as tables_module
from actors.broker.core.reading.pull import SUBSCRIPTION
from actors.nameserver.kv_config import CHARS_MAX, KVConfig
from actors.nameserver.route_table import Registrant, RouteTable
from actors.wire.admin_headers import CloneGroupOffsetHeader, ResetOffsetHeader
from actors.wire.bodies.locks import LockedQueues, LockRequest
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES
from actors.wire.headers import (
    ConsumerSendMsgBackHeader,
    CreateTopicHeader,
    PullMessageHeader,
    PullRecordsHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from actors.wire.raymq_requests import CommitOffsetsBody, OffsetCommit
from actors.wire.remoting_errors import Refused
from store.lite.lite_index import lmq_name
from store.message.data_version import DataVersion
from store.message.message_id import decode_message_id
from store.message.message_queue import MessageQueue
from store.message.properties import encode_properties
from tests.actors.broker.brokers import Peer, registered_broker, run, settings_of, with_broker
from tests.actors.broker.features.lite import lite_peers as lite
from tests.eventually import eventually_async

TOPIC = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0}
A = Registrant("c", "broker-a", 0, "a:1")


def test_parts_of_a_registration_fit_into_frames_and_have_all_topics() -> None:
    names = {f"{number:0>127}" for number in range(120_000)}
    whole = RegisterBrokerBody(DataVersion(7, 1), dict.fromkeys(names, TOPIC))
    assert len(whole.encode()) > MAX_FRAME_BYTES

    parts = list(whole.encode_parts(1 << 20))
    assert max(map(len, parts)) < 2 << 20
    decoded = [RegisterBrokerBody.decode(part) for part in parts]
    assert {name for part in decoded for name in part.topic_configs} == names
    assert len({part.data_version for part in decoded}) == len(parts)
    assert decoded[-1].data_version == whole.data_version


def test_nameserver_merges_the_parts_of_a_registration() -> None:
    routes = RouteTable(delete_topic_with_broker_registration=True)
    one, two = ({name: TOPIC} for name in ("One", "Two"))
    for _ in range(2):
        routes.register(A, RegisterBrokerBody(DataVersion(-1), one), "x", 0, 9, is_partial=True)
        routes.register(A, RegisterBrokerBody(DataVersion(5), two), "x", 0, 9, is_partial=True)
        assert routes.topics() == ["One", "Two"]
    routes.register(A, RegisterBrokerBody(DataVersion(6), two), "x", 0, 9)
    assert routes.topics() == ["Two"]


def test_broker_with_many_topics_registers_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "REGISTRATION_BYTES", 2_000)

    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            names = {f"T-{number}" for number in range(60)}
            for name in names:
                ext = CreateTopicHeader(name, 1, 1, 6).to_ext()
                assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
            assert names <= set(nameserver.routes.topics())

    run(story)


def test_topics_and_groups_above_the_limits_are_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        tables = peer.tables
        topics, groups = len(tables.topics.table.topics) + 1, len(tables.groups.table.groups) + 1
        limits = b"max_topics=%d\nmax_groups=%d" % (topics, groups)
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=limits)).code == ResponseCode.SUCCESS
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        created = CreateTopicHeader("Second", 1, 1, 6).to_ext()
        for refused in (
            await peer.send("Second"),
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, created),
        ):
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "limit max_topics = " in (refused.remark or "")
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        changed = CreateTopicHeader("T", 2, 2, 6).to_ext()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, changed)).code == ResponseCode.SUCCESS

        group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await peer.ask(group, body=b'{"groupName":"G1"}')).code == ResponseCode.SUCCESS
        refused = await peer.ask(group, body=b'{"groupName":"G2"}')
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "limit max_groups = " in (refused.remark or "")
        assert "G2" not in tables.groups.table.groups

    with_broker(story, settings_of(tmp_path))


def test_claims_commits_and_further_locks_need_existing_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "LOCKS", replace(queue_locks.LOCKS, limit=1))

    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.heartbeat("c", "CG", T="*")
        tables = peer.tables
        for topic, queue_id in (("T", 70_000), ("None", 0), ("T", -1)):
            ext = QueryConsumerOffsetHeader("CG", topic, queue_id, False, 5).to_ext()
            assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)).code != ResponseCode.SUCCESS
            ext = UpdateConsumerOffsetHeader("CG", topic, queue_id, 5).to_ext()
            assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code != ResponseCode.SUCCESS
        assert not tables.offsets.generations
        assert not tables.offsets.table.offsets

        queues = [MessageQueue("T", "broker-a", each) for each in (0, 1, 70_000)]
        body = LockRequest("CG", "c", [*queues, MessageQueue("None", "broker-a", 0)]).encode()
        response = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)
        assert LockedQueues.decode(response.body).queues == queues[:2]

    with_broker(story, settings_of(tmp_path))


def test_topics_that_all_groups_consume_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever request would note the first offset or generation of a group."""
    bound = consumer_offsets.CONSUMED
    monkeypatch.setattr(consumer_offsets, "CONSUMED", replace(bound, limit=2))

    async def story(peer: Peer) -> None:
        for topic in "TU":
            await peer.send(topic)
            await peer.commit("CG", topic, 1)
        await peer.commit("Other", "T", 1)
        code, offsets = RequestCode, peer.tables.offsets
        commits = CommitOffsetsBody("Other", "c", [OffsetCommit("T", 0, 1, 1)])
        requests: list[tuple[int, dict[str, str], bytes]] = [
            (code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("Other", "T", 0, 1).to_ext(), b""),
            (code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("Other", "T", 0, None, 5).to_ext(), b""),
            (code.PULL_MESSAGE, PullMessageHeader("Other", "T", 0, 0, sys_flag=SUBSCRIPTION).to_ext(), b""),
            (code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader("T", "Other", 0, -1).to_ext(), b""),
            (code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("CG", "Other", "T", True).to_ext(), b""),
            (RayMQRequestCode.COMMIT_OFFSETS, {}, commits.encode()),
            (RayMQRequestCode.PULL_RECORDS, PullRecordsHeader("T", 0, 0, "Other").to_ext(), b""),
        ]
        for request in requests:
            response = await peer.ask(*request)
            assert "the limit is 2: delete groups or topics" in response.remark, request[0]
        assert set(offsets.table.offsets) == {"T@CG", "U@CG"}
        assert not offsets.generations
        assert (await peer.commit("CG", "T", 0)).code == ResponseCode.SUCCESS
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS
        assert {use.bound.name: use.read() for use in offsets.bounds()}[bound.name] == 2

    with_broker(story, settings_of(tmp_path))


def test_consumed_lite_topics_have_a_bound_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever request would note the first offset; other topics are not concerned."""
    bound = consumer_offsets.LITE_CONSUMED
    monkeypatch.setattr(consumer_offsets, "LITE_CONSUMED", replace(bound, limit=2))
    monkeypatch.setattr(consumer_offsets, "CONSUMED", replace(consumer_offsets.CONSUMED, limit=1))

    async def story(peer: Peer) -> None:
        for name in "abc":
            await lite.send(peer, name, "0")
        await lite.sync(peer, "PARTIAL_ADD", "a", "b")
        assert len(await lite.pop(peer)) == 2
        await lite.sync(peer, "PARTIAL_ADD", "c")
        commit = UpdateConsumerOffsetHeader(lite.GROUP, lmq_name(lite.TOPIC, "c"), 0, 1).to_ext()
        for response in (
            await lite.pop_response(peer),
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit),
        ):
            assert "the limit is 2: delete groups or topics" in response.remark
        offsets = peer.tables.offsets
        assert {use.bound.name: use.read() for use in offsets.bounds()}[bound.name] == 2
        await peer.send("T")
        assert (await peer.commit("CG", "T", 1)).code == ResponseCode.SUCCESS

    lite.with_lite_broker(story, tmp_path)


def test_retried_messages_are_counted_by_topics_that_exist(tmp_path: Path) -> None:
    """The name of the first topic is a property, which clients set."""

    async def story(peer: Peer) -> None:
        await peer.commit("CG", "T", 0)
        names = ("none", "x" * 30_000, "T")
        for name in names:
            first = encode_properties({"RETRY_TOPIC": name}).decode()
            sent = await peer.send("T", properties=first)
            back = ConsumerSendMsgBackHeader(decode_message_id(sent.ext["msgId"])[1], "CG", -1).to_ext()
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
            await peer.send("%RETRY%CG", properties=first, reconsume_times=99)
        stats = peer.loop.stats
        assert dict(stats.dead_letters) == {("T", "CG"): len(names) + 1, ("%RETRY%CG", "CG"): 2}
        assert set(stats.send_backs) == {("T", "CG")}

    with_broker(story, settings_of(tmp_path))


def test_members_of_one_connection_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "MEMBERSHIPS", replace(clients_module.MEMBERSHIPS, limit=4))

    async def story(peer: Peer) -> None:
        await peer.send("T")
        for number in range(5):
            await peer.heartbeat(f"c{number}", "CG", T="*")
        group = peer.groups.clients.group("CG")
        assert group is not None
        assert set(group.members) == {"c0", "c1"}
        assert (await peer.heartbeat("c1", "CG", T="*")).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path))


def test_nameserver_bounds_brokers_topics_and_kv_config() -> None:
    routes = RouteTable(max_brokers=1, max_topics=2)
    routes.register(A, RegisterBrokerBody(DataVersion(1), {"One": TOPIC}), "x", 0, 9)
    with pytest.raises(Refused, match="max_brokers = 1"):
        routes.register(Registrant("c", "b", 0, "b:1"), RegisterBrokerBody(), "x", 0, 9)
    with pytest.raises(Refused, match="max_topics = 2"):
        routes.register(
            A, RegisterBrokerBody(DataVersion(2), dict.fromkeys(("1", "2", "3"), TOPIC)), "x", 0, 9
        )
    assert routes.topics() == ["One"]

    table = KVConfig(None, entries_max=2)
    table.put("n", "a", "1")
    table.put("n", "b", "1")
    table.put("n", "b", "2")
    with pytest.raises(Refused, match="max_kv_entries = 2"):
        table.put("m", "c", "1")
    with pytest.raises(Refused, match="the limit is 4,194,304"):
        table.put("n", "b", "x" * CHARS_MAX)


def test_connections_of_one_address_are_bounded(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        host, _, port = peer.broker.address.rpartition(":")
        pairs = [await asyncio.open_connection(host, int(port))]
        await eventually_async(lambda: len(peer.loop.server.connections) == 2)
        pairs.append(await asyncio.open_connection(host, int(port)))
        assert await pairs[1][0].read() == b""  # closed, though it has sent nothing
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        for _, writer in pairs:
            writer.close()

    with_broker(story, settings_of(tmp_path, max_connections_per_address=2))

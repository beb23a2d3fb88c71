"""Consumer groups over the socket: heartbeats, member lists, offsets with generations, send-back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from actors.broker.core.group import client_requests
from actors.broker.core.reading.pull import COMMIT_OFFSET
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import (
    ConsumerData,
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupRequest,
)
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import (
    ConsumerGroupHeader,
    ConsumerSendMsgBackHeader,
    QueryConsumerOffsetHeader,
    UnregisterClientHeader,
)
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.raymq_requests import CommitOffsetsBody, CommitOffsetsReply, OffsetCommit, RefusedCommit
from store.message.record import decode_record
from tests.actors.broker.brokers import HOLD_MS, SUBSCRIPTION, Peer, settings_of, with_broker


async def members(peer: Peer, group: str = "G") -> tuple[str, ...]:
    ext = ConsumerGroupHeader(group).to_ext()
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return ()
    return GroupMembers.decode(answer.body).members


def notified_peer(broker_peer: Peer) -> tuple[Peer, asyncio.Queue[str]]:
    """Return a client, and a queue of the group names in its NOTIFY_CONSUMER_IDS_CHANGED requests."""
    notifications: asyncio.Queue[str] = asyncio.Queue()

    def changed(context: RequestContext) -> None:
        notifications.put_nowait(context.command.ext["consumerGroup"])

    table = RequestTable()
    table.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, changed)
    return Peer(broker_peer.broker, table), notifications


def test_members_are_notified_when_members_join_or_leave(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        one, notifications = notified_peer(peer)
        await one.heartbeat("client-1", "G", T="*")
        assert await notifications.get() == "G"
        assert await members(peer) == ("client-1",)
        two, three = Peer(peer.broker), Peer(peer.broker)
        await two.heartbeat("client-2", "G", T="*")
        await notifications.get()
        await three.heartbeat("client-3", "G", T="*")
        await notifications.get()
        assert await members(peer) == ("client-1", "client-2", "client-3")
        unregister = UnregisterClientHeader("client-2", "PG", "G").to_ext()
        assert (await two.ask(RequestCode.UNREGISTER_CLIENT, unregister)).code == 0
        await notifications.get()
        await three.client.close()
        await notifications.get()
        assert await members(peer) == ("client-1",)
        await one.client.close()
        await two.client.close()

    with_broker(story, settings_of(tmp_path))


def test_heartbeat_creates_the_group_and_its_retry_topic(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.heartbeat("client-1", "G", T="*")).code == 0
        assert (await peer.pull("%RETRY%G")).code == ResponseCode.PULL_NOT_FOUND
        assert (await peer.ask(RequestCode.HEART_BEAT, body=b"{}")).code == ResponseCode.SYSTEM_ERROR
        assert (await peer.ask(RequestCode.HEART_BEAT, body=b"no json")).code == ResponseCode.SYSTEM_ERROR

    with_broker(story, settings_of(tmp_path))


def test_missing_offset_is_not_found_unless_the_topic_is_new(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        assert (await peer.committed("G", "T")).code == ResponseCode.QUERY_NOT_FOUND
        lenient = QueryConsumerOffsetHeader("G", "T", 0).to_ext()
        new = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, lenient)
        assert (new.code, new.ext["offset"]) == (0, "0")
        empty = QueryConsumerOffsetHeader("G", "T", 1).to_ext()
        assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, empty)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await peer.commit("G", "T", 1)).code == 0
        assert (await peer.committed("G", "T")).ext["offset"] == "1"
        assert (await peer.commit("G", "T", -1)).code == ResponseCode.INVALID_PARAMETER
        assert (await peer.commit("G", "UNKNOWN", 1)).code == ResponseCode.TOPIC_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_pull_records_can_commit_an_offset(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        assert (await peer.pull_records("T", commit_offset=1)).code == 0
        assert (await peer.committed("CG", "T")).ext["offset"] == "1"

    with_broker(story, settings_of(tmp_path))


def test_pull_message_commits_only_with_flag_and_valid_offset(tmp_path: Path) -> None:
    async def pull(peer: Peer, sys_flag: int, commit_offset: int) -> None:
        header = PullMessageHeader(
            "CG", "T", 0, 0, sys_flag=SUBSCRIPTION | sys_flag, commit_offset=commit_offset, subscription="*"
        )
        assert (await peer.ask(RequestCode.PULL_MESSAGE, header.to_ext())).code == 0

    async def story(peer: Peer) -> None:
        await peer.send("T")
        await pull(peer, COMMIT_OFFSET, -1)
        await pull(peer, 0, 1)
        assert (await peer.committed("CG", "T")).code == ResponseCode.QUERY_NOT_FOUND
        await pull(peer, COMMIT_OFFSET, 1)
        assert (await peer.committed("CG", "T")).ext["offset"] == "1"

    with_broker(story, settings_of(tmp_path))


async def commit(peer: Peer, *commits: OffsetCommit) -> CommitOffsetsReply:
    answer = await peer.ask(
        RayMQRequestCode.COMMIT_OFFSETS, body=CommitOffsetsBody("G", "client-1", commits).encode()
    )
    assert answer.code == 0
    return CommitOffsetsReply.decode(answer.body)


def test_generations_survive_a_broker_restart(tmp_path: Path) -> None:
    async def first(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T", queue_id=1)
        assert (await commit(peer, OffsetCommit("T", 0, 1, 5))).refused == []
        claim = {**QueryConsumerOffsetHeader("G", "T", 1).to_ext(), "generation": "7"}
        assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, claim)).code == 0

    async def second(peer: Peer) -> None:
        reply = await commit(peer, OffsetCommit("T", 0, 9, 4), OffsetCommit("T", 1, 9, 6))
        assert reply.refused == [RefusedCommit("T", 0, 5, 1), RefusedCommit("T", 1, 7, -1)]
        assert (await commit(peer, OffsetCommit("T", 0, 9, 5))).refused == []
        assert (await peer.committed("G", "T")).ext["offset"] == "9"

    with_broker(first, settings_of(tmp_path))
    with_broker(second, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        (OffsetCommit("DELETED", 0, 1, 1), ResponseCode.TOPIC_NOT_EXIST, "DELETED"),
        (OffsetCommit("T", 0, -1, 1), ResponseCode.INVALID_PARAMETER, "negative offset -1"),
        (OffsetCommit("T", -1, 1, 1), ResponseCode.INVALID_PARAMETER, "-1"),
    ],
)
def test_invalid_commit_does_not_undo_those_of_other_queues(
    tmp_path: Path, wrong: OffsetCommit, code: ResponseCode, words: str
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T", queue_id=1)
        commits = [OffsetCommit("T", 0, 1, 1), wrong, OffsetCommit("T", 1, 1, 1)]
        body = CommitOffsetsBody("G", "client-1", commits).encode()
        response = await peer.ask(RayMQRequestCode.COMMIT_OFFSETS, body=body)
        assert (response.code, words in (response.remark or "")) == (code, True), response.remark
        assert [(await peer.committed("G", "T", queue)).ext["offset"] for queue in (0, 1)] == ["1", "1"]
        assert (await peer.ask(RayMQRequestCode.COMMIT_OFFSETS, body=b"[]")).code == 1

    with_broker(story, settings_of(tmp_path))


def beat_of(*groups: str, model: str = "CLUSTERING") -> bytes:
    subscriptions = [SubscriptionData("T", "*")]
    consumers = [ConsumerData(each, message_model=model, subscriptions=subscriptions) for each in groups]
    return HeartbeatData("client-1", consumers, ["PG"]).encode()


def test_group_skipped_first_is_logged_again_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "SKIPPED", replace(client_requests.SKIPPED, limit=2))

    async def story(peer: Peer) -> None:
        with structlog.testing.capture_logs() as logs:
            for name in ("A", "B", "C", "C", "B", "A"):
                await peer.ask(RequestCode.HEART_BEAT, body=beat_of(name))
        skipped = [each["group"] for each in logs if each["event"] == "heartbeat_group_skipped"]
        assert skipped == ["A", "B", "C", "A"]
        assert [each.read() for each in peer.groups.requests.bounds()] == [2]

    with_broker(story, settings_of(tmp_path, auto_create_groups=False))


def test_refused_group_of_a_heartbeat_is_skipped_and_logged_once(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for known in ("FIRST", "LAST"):
            config = orjson.dumps({"groupName": known})
            await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                body = beat_of("FIRST", "MISSING", "not valid", "LAST")
                assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == 0
        assert [await members(peer, group) for group in ("FIRST", "LAST")] == [("client-1",)] * 2
        assert [await members(peer, group) for group in ("MISSING", "not valid")] == [(), ()]
        skipped = [each["group"] for each in logs if each["event"] == "heartbeat_group_skipped"]
        assert skipped == ["MISSING", "not valid"]

        config = orjson.dumps({"groupName": "MISSING"})
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        assert (await peer.ask(RequestCode.HEART_BEAT, body=beat_of("FIRST", "MISSING"))).code == 0
        assert await members(peer, "MISSING") == ("client-1",)

    with_broker(story, settings_of(tmp_path, auto_create_groups=False))


@pytest.mark.parametrize(
    "invalid",
    [{"groupName": "x" * 300}, None, "G", {"groupName": "B", "subscriptionDataSet": [{"codeSet": ["x"]}]}],
)
def test_invalid_entry_of_a_heartbeat_is_skipped_unless_it_is_the_only_one(
    tmp_path: Path, invalid: object
) -> None:
    def beat(*consumers: object) -> bytes:
        producers = [{"groupName": "PG"}]
        fields = {"clientID": "client-1", "consumerDataSet": consumers, "producerDataSet": producers}
        return orjson.dumps(fields)

    async def story(peer: Peer) -> None:
        body = beat({"groupName": "FIRST"}, invalid, {"groupName": "LAST"})
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == 0
        assert [await members(peer, group) for group in ("FIRST", "LAST")] == [("client-1",)] * 2
        refused = await peer.ask(RequestCode.HEART_BEAT, body=beat(invalid))
        assert refused.code == ResponseCode.SYSTEM_ERROR

    with_broker(story, settings_of(tmp_path))


async def set_group(peer: Peer, **config: Any) -> None:
    body = orjson.dumps(config)
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0


def test_group_without_broadcast_enable_refuses_pulls_of_broadcasters(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.ask(RequestCode.HEART_BEAT, body=beat_of("CG", model="BROADCASTING"))
        await set_group(peer, groupName="CG", consumeBroadcastEnable=False)
        subscribed = PullMessageHeader("CG", "T", 0, 0).to_ext()
        for refused in (
            await peer.ask(RequestCode.PULL_MESSAGE, subscribed),
            await peer.pull("T"),
            await peer.pull_records("T"),
        ):
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "the consumer group[CG] can not consume by broadcast way" in (refused.remark or "")
        await peer.ask(RequestCode.HEART_BEAT, body=beat_of("CG"))
        assert (await peer.ask(RequestCode.PULL_MESSAGE, subscribed)).code == 0
        await set_group(peer, groupName="CG", consumeBroadcastEnable=True)
        await peer.ask(RequestCode.HEART_BEAT, body=beat_of("CG", model="BROADCASTING"))
        assert (await peer.ask(RequestCode.PULL_MESSAGE, subscribed)).code == 0

    with_broker(story, settings_of(tmp_path))


def test_group_without_notifications_sends_none_to_its_members(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        member, notifications = notified_peer(peer)
        for group in ("QUIET", "G"):
            await set_group(peer, groupName=group, notifyConsumerIdsChangedEnable=group == "G")
            await member.heartbeat("client-1", group, T="*")
        other = Peer(peer.broker)
        await other.heartbeat("client-2", "QUIET", T="*")
        await other.heartbeat("client-2", "G", T="*")
        # Notifications of a connection arrive in order: one of QUIET would have come before the last one.
        assert [await notifications.get(), await notifications.get()] == ["G", "G"]
        assert await members(peer, "QUIET") == ("client-1", "client-2")
        await member.client.close()
        await other.client.close()

    with_broker(story, settings_of(tmp_path))


def test_sync_group_without_a_rebalancer_is_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        body = SyncGroupRequest("G", "client-1", subscriptions={"T": "*"}).encode()
        answer = await peer.ask(RayMQRequestCode.SYNC_GROUP, body=body)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await peer.heartbeat("client-1", "G", T="*")
        assert await members(peer) == ("client-1",)

    with_broker(story, settings_of(tmp_path))
    with_broker(story, settings_of(tmp_path, rebalancers=["127.0.0.1:1"]))


def test_message_sent_back_is_retried_then_dead_lettered(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"bad", properties="KEYS\x01k\x02")
        (message,) = await peer.messages("T")
        back = ConsumerSendMsgBackHeader(message.commit_log_offset, "G", 0, max_reconsume_times=1).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        assert await peer.messages("%RETRY%G") == []
        clock.advance(10_000)  # delay level 3
        again = decode_record((await peer.pull("%RETRY%G", wait_ms=HOLD_MS)).body)
        assert (again.body, again.reconsume_times, again.properties["KEYS"]) == (b"bad", 1, "k")
        assert again.properties["RETRY_TOPIC"] == "T"
        assert again.properties["ORIGIN_MESSAGE_ID"] == message.offset_msg_id
        last = ConsumerSendMsgBackHeader(again.commit_log_offset, "G", 0, max_reconsume_times=1).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, last)).code == 0
        (dead,) = await peer.messages("%DLQ%G")
        assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (2, "T")
        assert dead.properties["ORIGIN_MESSAGE_ID"] == message.offset_msg_id
        missing = ConsumerSendMsgBackHeader(1 << 40, "G", 0).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, missing)).code == ResponseCode.SYSTEM_ERROR
        assert decode_record((await peer.pull("T")).body).body == b"bad"

    with_broker(story, settings_of(tmp_path), clock)


def test_group_names_may_be_as_long_as_rocketmqs_clients_allow(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"bad")
        (message,) = await peer.messages("T")
        group = "g" * 248  # its retry topic has 255 characters, the limit of a file name
        assert (await peer.heartbeat("client", group, T="*")).code == 0
        assert await members(peer, group) == ("client",)
        back = ConsumerSendMsgBackHeader(message.commit_log_offset, group, 0).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        clock.advance(10_000)
        assert decode_record((await peer.pull(f"%RETRY%{group}", wait_ms=HOLD_MS)).body).body == b"bad"
        longest = "g" * 255
        assert (await peer.heartbeat("client", longest, T="*")).code == 0
        assert await members(peer, longest) == ("client",)
        back = ConsumerSendMsgBackHeader(message.commit_log_offset, longest, 0).to_ext()
        refused = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "262 characters, the limit is 255" in (refused.remark or "")

    with_broker(story, settings_of(tmp_path), clock)


def test_retry_delay_grows_or_is_set_by_the_consumer(tmp_path: Path, clock) -> None:
    async def send_back(peer: Peer, position: int, level: int = 0) -> None:
        ext = ConsumerSendMsgBackHeader(position, "G", level).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0

    async def story(peer: Peer) -> None:
        await peer.send("T", b"bad")
        (first,) = await peer.messages("T")
        await send_back(peer, first.commit_log_offset)
        clock.advance(10_000)  # delay level 3
        again = decode_record((await peer.pull("%RETRY%G", wait_ms=HOLD_MS)).body)
        await send_back(peer, again.commit_log_offset)
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=3)) == 1, (
            "delay level 4 after the second attempt"
        )
        await send_back(peer, again.commit_log_offset, 7)
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=6)) == 1
        await send_back(peer, again.commit_log_offset, -1)
        (dead,) = await peer.messages("%DLQ%G")
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"bad", "T")

    with_broker(story, settings_of(tmp_path), clock)


def test_retries_use_all_queues_of_the_retry_topic(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await set_group(peer, groupName="G", retryQueueNums=2)
        for _ in range(4):
            await peer.send("T")
        for message in await peer.messages("T"):
            ext = ConsumerSendMsgBackHeader(message.commit_log_offset, "G", 1).to_ext()
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        retries = await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=0)
        assert [each.properties["REAL_QID"] for each in retries] == ["0", "1", "0", "1"]

    with_broker(story, settings_of(tmp_path), clock)


def test_group_settings_limit_or_disable_retries(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"bad", reconsume_times=1)
        (message,) = await peer.messages("T")
        for group, queues, times in (("NEVER", 0, 16), ("ONCE", 1, 1)):
            config = {"groupName": group, "retryQueueNums": queues, "retryMaxTimes": times}
            body = orjson.dumps(config)
            await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            ext = ConsumerSendMsgBackHeader(message.commit_log_offset, group, 0).to_ext()
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        assert len(await peer.messages("%DLQ%ONCE")) == 1
        assert await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=3) == [], "no retry for group NEVER"

    with_broker(story, settings_of(tmp_path), clock)


def test_differing_subscriptions_are_logged_once(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        with structlog.testing.capture_logs() as events:
            for _ in range(5):
                await peer.heartbeat("one", "CG", T="a")
                await peer.heartbeat("two", "CG", T="b")
        assert [event["now"] for event in events if event["event"] == "subscriptions_differ"] == [
            {"T": "b"},
            {"T": "a"},
        ]

    with_broker(story, settings_of(tmp_path))

"""Pulls over the socket (found, filtered, held, woken, timed out), and queries for offsets and messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.broker.core.loop import end_of_turn
from actors.broker.service import BrokerService
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.headers import (
    CreateTopicHeader,
    DeleteTopicHeader,
    PullRecordsHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicHeader,
    TopicQueueHeader,
    ViewMessageHeader,
)
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.raymq_requests import SplitsBody
from store.common.clock import SystemClock
from store.message.message_id import decode_message_id
from store.message.record import decode_record, decode_records
from store.message_store import GetMessageResult, MessageStore
from tests.actors.broker.brokers import HOLD_MS, SUSPEND, Peer, run, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


def test_pull_returns_rocketmqs_status_at_each_offset(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"0")
        await peer.send("T", b"1")
        expected = {
            0: (ResponseCode.SUCCESS, "2", [b"0", b"1"]),
            1: (ResponseCode.SUCCESS, "2", [b"1"]),
            2: (ResponseCode.PULL_NOT_FOUND, "2", []),
            3: (ResponseCode.PULL_OFFSET_MOVED, "2", []),
        }
        for offset, (code, next_offset, bodies) in expected.items():
            answer = await peer.pull("T", offset)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (code, next_offset)
            assert [message.body for message in decode_records(answer.body)] == bodies
            assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "2")
            assert answer.ext["suggestWhichBrokerId"] == "0"

    with_broker(story, settings_of(tmp_path))


def test_empty_queue_ends_at_offset_zero(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        assert (await peer.pull("T", 0, queue_id=1)).code == ResponseCode.PULL_NOT_FOUND
        moved = await peer.pull("T", 5, queue_id=1)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
        assert (await peer.pull("T", queue_id=4)).code == ResponseCode.INVALID_PARAMETER
        assert (await peer.pull("U")).code == ResponseCode.TOPIC_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_pull_limits_messages_and_bytes(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(40):
            await peer.send("T", b"x" * 100)
        assert (await peer.pull("T", max_msg_nums=1000)).ext["count"] == "32"
        assert (await peer.pull("T", max_msg_nums=3)).ext["count"] == "3"
        assert (await peer.pull_records("T")).ext["count"] == "40"
        assert (await peer.pull_records("T", max_bytes=1)).ext["count"] == "1"
        assert (await peer.pull_records("T", max_messages=5)).ext["count"] == "5"

    with_broker(story, settings_of(tmp_path))


def test_broker_filters_messages_by_tag(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for number, tag in enumerate("abcab"):
            await peer.send("T", b"%d" % number, properties=f"TAGS\x01{tag}\x02")
        some = await peer.pull("T", tags="a || c")
        assert [message.body for message in decode_records(some.body)] == [b"0", b"2", b"3"]
        none = await peer.pull("T", tags="z")
        assert (none.code, none.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "5")
        assert (await peer.pull("T", expression_type="XPATH")).code == ResponseCode.SYSTEM_ERROR
        assert (await peer.pull_records("T", subscription="b")).ext["count"] == "2"

    with_broker(story, settings_of(tmp_path))


def test_held_pull_returns_the_first_matching_message(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="TAGS\x01a\x02")
        waiting = asyncio.create_task(peer.pull("T", 1, wait_ms=HOLD_MS, tags="b"))
        other_queue = asyncio.create_task(peer.pull_records("T", 1, wait_ms=HOLD_MS))
        await peer.until_held(2)
        await peer.send("T", b"not mine", properties="TAGS\x01a\x02")
        assert decode_records((await other_queue).body)[0].body == b"not mine"
        assert not waiting.done()
        await peer.send("T", b"mine", properties="TAGS\x01b\x02")
        answer = await waiting
        assert [message.body for message in decode_records(answer.body)] == [b"mine"]
        assert answer.ext["nextBeginOffset"] == "3"

    with_broker(story, settings_of(tmp_path))


def test_held_pull_times_out(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        answer = await peer.pull("T", 1, wait_ms=30)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")
        assert peer.broker.describe()["held_pulls"] == 0

    with_broker(story, settings_of(tmp_path))


def test_held_pull_at_the_end_of_a_queue_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    """The response of a held pull that times out is the same as that of a pull that is not held."""
    reads: list[tuple[str, int]] = []
    get_message = MessageStore.get_message

    def counted(store: MessageStore, topic: str, queue_id: int, *others: Any) -> GetMessageResult:
        reads.append((topic, queue_id))
        return get_message(store, topic, queue_id, *others)

    async def story(peer: Peer) -> None:
        await peer.send("T")
        # Queues 1 to 3 have no messages.
        queue_ends = [(queue_id, int(queue_id == 0)) for queue_id in range(4)]
        not_held = [await peer.pull("T", offset, queue_id=queue_id) for queue_id, offset in queue_ends]
        reads.clear()
        pulls = [
            asyncio.create_task(peer.pull("T", offset, queue_id=queue, wait_ms=30))
            for queue, offset in queue_ends * 20
        ]
        await peer.until_held(len(pulls))
        clock.advance(1_000)  # past the wait time of all pulls
        held = await asyncio.gather(*pulls)
        assert len(reads) <= len(queue_ends)  # one read per response, which many pulls share
        for number, answer in enumerate(held):
            same = not_held[number % len(queue_ends)]
            assert (answer.code, answer.remark, answer.ext) == (same.code, same.remark, same.ext)
        assert not_held[0].code == ResponseCode.PULL_NOT_FOUND
        assert (await peer.pull("T", 2, wait_ms=30)).code == ResponseCode.PULL_OFFSET_MOVED

    monkeypatch.setattr(MessageStore, "get_message", counted)
    with_broker(story, settings_of(tmp_path), clock)


def test_pull_at_the_end_of_a_queue_does_not_dispatch_other_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_of_turn, "DISPATCH_LATER_NS", 10**12)

    async def story(peer: Peer) -> None:
        for _ in range(2):
            await peer.send("T", b"first")  # at least one is dispatched without a waiting pull
        positions = peer.store.positions
        assert (await peer.pull("T", 0)).ext["maxOffset"] == "2"
        assert positions.dispatched == positions.confirmed
        await peer.send("T", b"later")
        assert positions.dispatched < positions.confirmed
        assert (await peer.pull("T", 0, queue_id=1)).code == ResponseCode.PULL_NOT_FOUND
        held = asyncio.create_task(peer.pull("T", 0, queue_id=2, wait_ms=HOLD_MS))
        await peer.until_held(1)
        assert positions.dispatched < positions.confirmed
        assert (await peer.pull("T", 2)).ext["nextBeginOffset"] == "3"
        await peer.send("T", b"awaited", queue_id=2)
        assert (await held).code == ResponseCode.SUCCESS

    # the timer's rounds dispatch too
    with_broker(story, settings_of(tmp_path, timer_wheel_enable=False))


def test_one_message_wakes_hundreds_of_held_pulls(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        held = [asyncio.create_task(peer.pull("T", 1, wait_ms=HOLD_MS)) for _ in range(300)]
        await peer.until_held(300)
        await peer.send("T", b"new")
        answers = [await task for task in held]
        assert {(answer.code, answer.ext["count"]) for answer in answers} == {(ResponseCode.SUCCESS, "1")}
        assert peer.broker.describe()["held_pulls"] == 0

    with_broker(story, settings_of(tmp_path))


def test_woken_pull_is_refused_over_the_unread_bytes_limit(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        woken, late = (asyncio.create_task(peer.pull("T", 1, wait_ms=wait)) for wait in (HOLD_MS, 1))
        await peer.until_held(2)
        (connection,) = peer.loop.server.connections
        connection.hub.unread_bytes += 1_001
        clock.advance(1_000)
        assert (await late).code == ResponseCode.PULL_NOT_FOUND  # a response without messages is small
        await peer.send("T", b"new")
        refused = await woken
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "1,001 bytes of responses wait for clients that do not read them" in refused.remark
        connection.hub.unread_bytes -= 1_001
        assert (await peer.pull("T", 1)).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path, max_unread_bytes=1_000), clock)


def test_held_pulls_are_dropped_with_their_connection(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        gone = Peer(peer.broker)
        lost = asyncio.create_task(gone.pull("T", 1, wait_ms=HOLD_MS))
        await peer.until_held(1)
        await gone.client.close()
        await asyncio.gather(lost, return_exceptions=True)
        await peer.until_held(0)

    with_broker(story, settings_of(tmp_path))


def test_stopping_broker_completes_held_pulls(tmp_path: Path) -> None:
    async def story() -> None:
        broker = BrokerService(settings_of(tmp_path), SystemClock())
        await broker.start()
        peer = Peer(broker)
        await peer.send("T")
        held = [asyncio.create_task(peer.pull("T", 1, wait_ms=HOLD_MS)) for _ in range(200)]
        await peer.until_held(200)
        await broker.stop()
        answers = [await task for task in held]
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        await peer.client.close()

    run(story)


def test_topic_deletion_completes_held_pulls(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        waiting = asyncio.create_task(peer.pull("T", 1, wait_ms=HOLD_MS))
        await peer.until_held(1)
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())).code == 0
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.send("T", b"new")
        assert [message.body for message in await peer.messages("T")] == [b"new"]

    with_broker(story, settings_of(tmp_path))


def test_pull_without_subscription_uses_the_heartbeats(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"a", properties="TAGS\x01a\x02")
        await peer.send("T", b"b", properties="TAGS\x01b\x02")
        pull = PullMessageHeader("G", "T", 0, 0, sys_flag=SUSPEND).to_ext()
        assert (await peer.ask(RequestCode.PULL_MESSAGE, pull)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await peer.heartbeat("client-1", "G", T="b")
        found = await peer.ask(RequestCode.PULL_MESSAGE, pull)
        assert [message.body for message in decode_records(found.body)] == [b"b"]
        newer = PullMessageHeader("G", "T", 0, 0, sub_version=7).to_ext()
        assert (await peer.ask(RequestCode.PULL_MESSAGE, newer)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        other = PullMessageHeader("G", "TBW102", 0, 0).to_ext()
        assert (await peer.ask(RequestCode.PULL_MESSAGE, other)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_write_only_topic_cannot_be_read(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("W", 1, 1, 2).to_ext())
        assert (await peer.send("W")).code == 0
        assert (await peer.pull("W")).code == ResponseCode.NO_PERMISSION
        assert (await peer.pull_records("W")).code == ResponseCode.NO_PERMISSION

    with_broker(story, settings_of(tmp_path))


def test_queue_offsets_and_timestamps_are_returned(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        first_ms = clock.wall_ms()
        for _ in range(3):
            await peer.send("T")
            clock.set_wall_ms(clock.wall_ms() + 1000)
        assert await peer.offset(RequestCode.GET_MIN_OFFSET, "T") == 0
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "T") == 3
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "T", 1) == 0
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "UNKNOWN") == 0
        search = SearchOffsetHeader("T", 0, first_ms + 500).to_ext()
        assert (await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)).ext["offset"] == "1"
        for queue, time in ((0, first_ms), (1, -1)):
            earliest = TopicQueueHeader("T", queue).to_ext()
            answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, earliest)
            assert answer.ext["timestamp"] == str(time)

    with_broker(story, settings_of(tmp_path, {"flush": "async"}), clock)


def test_messages_are_found_by_id_key_or_unique_key(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send("T", b"one", properties="KEYS\x01k\x02UNIQ_KEY\x01U1\x02")
        await peer.send("T", b"two", properties="KEYS\x01k other\x02UNIQ_KEY\x01U2\x02")
        _, position = decode_message_id(sent.ext["msgId"])
        viewed = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(position).to_ext())
        assert decode_record(viewed.body).body == b"one"
        beyond = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(1 << 40).to_ext())
        assert beyond.code == ResponseCode.SYSTEM_ERROR
        for key, unique, bodies in (("k", False, [b"one", b"two"]), ("U2", True, [b"two"]), ("x", False, [])):
            ext = QueryMessageHeader("T", key, 32, 0, 1 << 60, unique).to_ext()
            found = await peer.ask(RequestCode.QUERY_MESSAGE, ext)
            assert found.code == (0 if bodies else ResponseCode.QUERY_NOT_FOUND)
            assert sorted(message.body for message in decode_records(found.body)) == bodies

    with_broker(story, settings_of(tmp_path))


def test_pull_records_without_a_group_cannot_commit(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"one")
        ext = PullRecordsHeader("T", 0, 0).to_ext()
        found = await peer.ask(RayMQRequestCode.PULL_RECORDS, ext)
        assert [message.body for message in decode_records(found.body)] == [b"one"]
        refused = await peer.ask(RayMQRequestCode.PULL_RECORDS, ext | {"commitOffset": "1"})
        assert refused.code == ResponseCode.INVALID_PARAMETER

    with_broker(story, settings_of(tmp_path))


def test_describe_splits_returns_offsets_and_file_location(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        answer = await peer.ask(RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("T").to_ext())
        splits = SplitsBody.decode(answer.body)
        assert [(queue.min_offset, queue.max_offset) for queue in splits.queues] == [
            (0, 0),
            (0, 1),
            (0, 0),
            (0, 0),
        ]
        assert splits.address == peer.broker.address
        assert Path(splits.store_root) == (tmp_path / "store").resolve()
        assert (splits.commit_log_file_bytes, splits.consume_queue_file_units) == (1 << 20, 2000)
        unknown = await peer.ask(RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("U").to_ext())
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_client_that_does_not_read_gets_no_more_responses(tmp_path: Path) -> None:
    """The broker produces no more responses for a connection that is over its high-water mark."""

    async def story(peer: Peer) -> None:
        for _ in range(8):
            await peer.send("T", b"x" * 100_000)
        host, _, port = peer.broker.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        command = RemotingCommand(
            RayMQRequestCode.PULL_RECORDS, PullRecordsHeader("T", 0, 0, "CG").to_ext(), opaque=1
        )
        frame = bytes(encode_command(command))
        before = int(str(peer.broker.describe()["messages_out"]))
        writer.write(frame * 400)
        await eventually_async(lambda: int(str(peer.broker.describe()["messages_out"])) > before)
        for _ in range(20):
            await peer.send("T")
        assert int(str(peer.broker.describe()["messages_out"])) < before + 8 * 40
        writer.close()
        reader.feed_eof()

    with_broker(story, settings_of(tmp_path))

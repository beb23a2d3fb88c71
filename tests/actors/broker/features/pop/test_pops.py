"""Pops over the socket: messages and receipts, acks, waits, revival, filters and refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from actors.broker.features.pop import pop_reader
from actors.wire.admin_headers import DeleteGroupHeader, ResetOffsetHeader
from actors.wire.bodies.pops import (
    BatchAck,
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    encode_batch_acks,
)
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader, DeleteTopicHeader
from store.disk.disk_use import DiskUse
from store.message.pop_records import ClaimKey
from store.message.record import decode_records
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.actors.broker.features.pop.pops import (
    GROUP,
    ack,
    bodies,
    change,
    changed,
    committed,
    pop,
    pop_response,
    popped,
    send,
)
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


class Disk:
    """A disk probe that reports the use that the test sets."""

    used_percent = 1

    def __call__(self, path: Path) -> DiskUse:
        return DiskUse(self.used_percent * 10, 1000 - self.used_percent * 10)


def figure(peer: Peer, name: str) -> object:
    return peer.broker.describe()[name]


async def revived(peer: Peer, count: int) -> None:
    await eventually_async(lambda: figure(peer, "pop_revived") == count)


def test_pops_wait_while_too_many_messages_are_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_reader, "IN_FLIGHT", replace(pop_reader.IN_FLIGHT, limit=2))

    async def story(peer: Peer) -> None:
        await send(peer, "a", "b", "c")
        first = await pop(peer, max_msg_nums=2)
        assert bodies(first) == [b"a", b"b"]
        assert await pop(peer) == []
        assert figure(peer, "pop_in_flight") == 2
        assert (await ack(peer, first[0])).code == ResponseCode.SUCCESS
        assert bodies(await pop(peer)) == [b"c"]

    with_broker(story, settings_of(tmp_path))


def test_popped_messages_are_acked_one_by_one(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0", "1", "2")
        first = await pop(peer, max_msg_nums=2)
        second = await pop(peer)
        assert (bodies(first), bodies(second)) == ([b"0", b"1"], [b"2"])
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT
        for each, offset in ((second[0], 0), (first[1], 0), (first[0], 3)):
            assert (await ack(peer, each)).code == 0
            assert await committed(peer) == offset
        assert (await ack(peer, first[0])).code == 0  # again
        assert figure(peer, "pop_in_flight") == 0

    with_broker(story, settings_of(tmp_path))


def test_response_has_rocketmqs_fields(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0", "1", "2", "3")
        await send(peer, "other", queue_id=1)
        response = await pop_response(peer, queue_id=0, max_msg_nums=3)
        ext = response.ext
        assert (response.code, response.remark) == (0, "FOUND")
        assert (ext["startOffsetInfo"], ext["msgOffsetInfo"], ext["restNum"]) == ("0 0 0", "0 0 0,1,2", "1")
        assert ext["invisibleTime"] == "60000"
        assert 0 <= int(ext["reviveQid"]) < 8
        rest = await pop_response(peer)
        assert sorted(rest.ext["msgOffsetInfo"].split(";")) == ["0 0 3", "0 1 0"]
        empty = await pop_response(peer)
        assert (empty.code, empty.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        assert (empty.ext["startOffsetInfo"], empty.ext["msgOffsetInfo"]) == ("", "")

    with_broker(story, settings_of(tmp_path))


def test_message_without_ack_returns_from_the_retry_topic(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0", "1")
        first = await pop(peer)
        await ack(peer, first[0])
        waiting = asyncio.create_task(pop_response(peer, poll_time=HOLD_MS))
        await peer.until_held(1)
        clock.advance(60_000)
        (again,) = popped(await waiting)
        assert (again.body, again.message.topic, again.message.reconsume_times) == (b"1", "T", 1)
        assert again.receipt.kind == "1"
        assert again.message.properties["1ST_POP_TIME"] == str(first[1].receipt.pop_ms)
        assert again.message.properties["UNIQ_KEY"] == first[1].message.properties["UNIQ_KEY"]
        assert await committed(peer) == 2
        clock.advance(60_000)
        await revived(peer, 2)
        (third,) = await pop(peer)
        assert (third.body, third.message.reconsume_times) == (b"1", 2)
        await ack(peer, third)
        assert await committed(peer, third.topic) == 2
        assert figure(peer, "pop_in_flight") == 0

    with_broker(story, settings_of(tmp_path), clock)


def test_changed_invisible_time_counts_from_the_change(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0")
        (first,) = await pop(peer)
        response = await change(peer, first, 100_000)
        assert response.code == 0
        extended = changed(first, response)
        assert (await change(peer, first, 5)).code == ResponseCode.NO_MESSAGE  # the receipt is used up
        clock.advance(99_999)
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT
        soon = changed(extended, await change(peer, extended, 10))
        clock.advance(10)
        await revived(peer, 1)
        assert bodies(await pop(peer)) == [b"0"]
        assert (await ack(peer, soon)).code == 0  # too late

    with_broker(story, settings_of(tmp_path), clock)


def test_batch_ack_acks_messages_of_several_queues(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for queue_id in range(2):
            await send(peer, "0", "1", "2", queue_id=queue_id)
        found = await pop(peer)
        acks = []
        for queue_id in range(2):
            receipt = next(each.receipt for each in found if each.receipt.queue_id == queue_id)
            key = ClaimKey("T", GROUP, queue_id, receipt.start_offset, receipt.pop_ms)
            acks.append(BatchAck(GROUP, "T", "0", key, 60_000, receipt.revive_queue, [0, 1]))
        body = orjson.dumps(encode_batch_acks("broker-a", acks))
        assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
        assert [await committed(peer, queue_id=each) for each in range(2)] == [2, 2]
        for body, code in (
            (b'{"acks":[]}', ResponseCode.NO_MESSAGE),
            (b"{", ResponseCode.SYSTEM_ERROR),
            (b'{"acks":[{"c":"PopG","t":"No","b":"Aw=="}]}', ResponseCode.TOPIC_NOT_EXIST),
            (b'{"acks":[{"c":"PopG","t":"T","b":"?"}]}', ResponseCode.INVALID_PARAMETER),
            (b'{"acks":[{"c":"PopG","t":"T","so":-1}]}', ResponseCode.INVALID_PARAMETER),
        ):
            assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == code, body

    with_broker(story, settings_of(tmp_path))


def test_one_waiting_pop_of_each_group_is_resumed_per_message(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0")
        await ack(peer, (await pop(peer))[0])
        await pop(peer, group="Other")
        groups = (GROUP, GROUP, GROUP, "Other")
        tasks = [asyncio.create_task(pop_response(peer, group=each, poll_time=HOLD_MS)) for each in groups]
        await peer.until_held(4)
        await send(peer, "1")
        await peer.until_held(2)
        await send(peer, "2")
        await peer.until_held(1)
        await send(peer, "3")
        found = [popped(await task) for task in tasks]
        assert sorted(bodies(found[0] + found[1] + found[2])) == [b"1", b"2", b"3"]
        assert bodies(found[3]) == [b"1"]

    with_broker(story, settings_of(tmp_path))


def test_wait_of_a_pop_ends_with_rocketmqs_code(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0")
        await pop(peer)
        waiting = asyncio.create_task(pop_response(peer, queue_id=0, poll_time=500))
        await peer.until_held(1)
        info = PollingInfoHeader(GROUP, "T", 0).to_ext()
        assert (await peer.ask(RequestCode.POLLING_INFO, info)).ext["pollingNum"] == "1"
        clock.advance(600)
        await send(peer, "x", topic="Unrelated")
        assert (await waiting).code == ResponseCode.POLLING_TIMEOUT

    with_broker(story, settings_of(tmp_path), clock)


def test_full_registry_refuses_a_waiting_pop(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0")
        await pop(peer)
        waiting = asyncio.create_task(pop_response(peer, poll_time=HOLD_MS))
        await peer.until_held(1)
        assert (await pop_response(peer, poll_time=HOLD_MS)).code == ResponseCode.POLLING_FULL
        await send(peer, "1")
        assert bodies(popped(await waiting)) == [b"1"]

    with_broker(story, settings_of(tmp_path, max_held_pulls=1))


def test_filter_skips_messages_and_moves_the_offset(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for tag in "abcabc":
            await send(peer, tag, properties=f"TAGS\x01{tag}\x02")
        found = await pop(peer, exp="b")
        assert bodies(found) == [b"b", b"b"]
        assert found[1].receipt[:1] == (0,)
        for each in found:
            await ack(peer, each)
        assert await committed(peer) == 6
        waiting = asyncio.create_task(pop_response(peer, exp="b || c", poll_time=HOLD_MS))
        await peer.until_held(1)
        for tag in "ac":
            await send(peer, tag, properties=f"TAGS\x01{tag}\x02")
        assert bodies(popped(await waiting)) == [b"c"]
        sql = await pop(peer, group="Sql", exp="TAGS = 'a'", exp_type="SQL92")
        assert bodies(sql) == [b"a", b"a", b"a"]

    with_broker(story, settings_of(tmp_path))


def test_new_group_starts_where_its_init_mode_says(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0", "1", "2")
        assert bodies(await pop(peer, group="Min", init_mode=0)) == [b"0", b"1", b"2"]
        assert bodies(await pop(peer, group="Max", init_mode=1)) == [b"2"]

    with_broker(story, settings_of(tmp_path, consume_new_topics_from_start=False))


def test_peek_and_notification_claim_nothing(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0", "1")
        none = NotificationHeader(GROUP, "T", -1, 0).to_ext()
        assert (await peer.ask(RequestCode.NOTIFICATION, none)).ext["hasMsg"] == "true"
        assert await committed(peer) is None
        peeked = await peer.ask(RequestCode.PEEK_MESSAGE, PeekMessageHeader(GROUP, "T", -1, 32).to_ext())
        assert [message.body for message in decode_records(peeked.body)] == [b"0", b"1"]
        notify = NotificationHeader(GROUP, "T", -1, HOLD_MS).to_ext()
        assert (await peer.ask(RequestCode.NOTIFICATION, notify)).ext["hasMsg"] == "true"
        assert len(await pop(peer)) == 2
        assert (
            await peer.ask(RequestCode.PEEK_MESSAGE, PeekMessageHeader(GROUP, "T", 0, 1).to_ext())
        ).code == (ResponseCode.PULL_NOT_FOUND)
        waiting = asyncio.create_task(peer.ask(RequestCode.NOTIFICATION, notify))
        await peer.until_held(1)
        await send(peer, "2")
        assert (await waiting).ext == {"hasMsg": "true", "pollingFull": "false"}
        assert bodies(await pop(peer)) == [b"2"]
        assert (await peer.ask(RequestCode.NOTIFICATION, none)).ext == {
            "hasMsg": "false",
            "pollingFull": "false",
        }

    with_broker(story, settings_of(tmp_path))


def test_reset_offset_ends_the_claims_of_the_group(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0", "1", "2", "3")
        claimed = await pop(peer)
        reset = ResetOffsetHeader(topic="T", group=GROUP, queue_id=0, offset=1, timestamp=-1, is_force=True)
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset.to_ext())).code == 0
        assert (await ack(peer, claimed[0])).code == 0
        assert await committed(peer) == 1
        again = await pop(peer)
        assert bodies(again) == [b"1", b"2", b"3"]
        assert (await ack(peer, claimed[1])).code == 0  # of an ended claim
        assert await committed(peer) == 1
        end = ResetOffsetHeader(topic="T", group=GROUP, queue_id=0, offset=4, timestamp=-1, is_force=True)
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, end.to_ext())).code == 0
        clock.advance(60_000)
        await eventually_async(lambda: figure(peer, "pop_in_flight") == 0)
        assert figure(peer, "pop_revived") == 0
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT

    with_broker(story, settings_of(tmp_path), clock)


def test_deleted_topic_forgets_its_claims(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0", "1")
        await pop(peer)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
        create = CreateTopicHeader("T", 1, 1, 6).to_ext()

        async def is_created() -> bool:
            return (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)).code == 0

        await eventually_async(is_created)
        await send(peer, "new")
        assert bodies(await pop(peer)) == [b"new"]
        assert figure(peer, "pop_in_flight") == 1

    with_broker(story, settings_of(tmp_path), clock)


def test_claims_of_a_deleted_group_are_not_revived(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0")
        await pop(peer)
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader(GROUP).to_ext())
        clock.advance(60_000)
        await eventually_async(lambda: figure(peer, "pop_in_flight") == 0)
        tables = peer.tables
        assert tables.topics.find(f"%RETRY%{GROUP}_T") is None
        assert GROUP not in tables.groups.table.groups

    with_broker(story, settings_of(tmp_path), clock)


def test_revival_waits_for_a_full_disk(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "0", "1")
        await pop(peer, max_msg_nums=1, invisible_time=12_000)
        await pop(peer, max_msg_nums=1, invisible_time=12_000)
        disk.used_percent = 99
        clock.advance(11_000)  # the disk is measured again
        await eventually_async(lambda: peer.store.write_refusal is not None)
        clock.advance(1_000)
        with capture_logs() as logs:
            await eventually_async(lambda: any(each["event"] == "pop_revival_failed" for each in logs))
        assert figure(peer, "pop_in_flight") == 2
        assert await committed(peer) == 0
        disk.used_percent = 1
        clock.advance(11_000)
        await eventually_async(lambda: peer.store.write_refusal is None)
        clock.advance(2_000)
        await revived(peer, 2)
        assert sorted(bodies(await pop(peer))) == [b"0", b"1"]

    disk = Disk()
    settings = settings_of(tmp_path, {"clean_interval_ms": 1})
    with_broker(story, settings, clock, probe=disk)


def test_dead_letter_after_the_groups_limit(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        config = orjson.dumps({"groupName": GROUP, "retryMaxTimes": 1})
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        await send(peer, "0")
        peer.broker.live.update({"pop_dead_letters": True})
        for times in range(2):
            (found,) = await pop(peer)
            assert found.message.reconsume_times == times
            clock.advance(60_000)
            await revived(peer, times + 1)
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT
        (letter,) = await peer.messages(f"%DLQ%{GROUP}")
        assert (letter.body, letter.reconsume_times) == (b"0", 2)
        assert "ORIGIN_MESSAGE_ID" in letter.properties

    with_broker(story, settings_of(tmp_path), clock)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"max_msg_nums": 33}, "INVALID_PARAMETER", "1 to 32"),
        ({"max_msg_nums": 0}, "INVALID_PARAMETER", "1 to 32"),
        ({"invisible_time": 0}, "INVALID_PARAMETER", "invisibleTime is 0"),
        ({"invisible_time": 2**62}, "INVALID_PARAMETER", "timer_max_delay_s"),
        ({"queue_id": 99}, "INVALID_PARAMETER", "queue 99"),
        ({"topic": "No"}, "TOPIC_NOT_EXIST", "No"),
        ({"group": ""}, "INVALID_PARAMETER", "group"),
        ({"exp": "a >", "exp_type": "SQL92"}, "SUBSCRIPTION_PARSE_FAILED", "a >"),
        ({"group": "g" * 254}, "INVALID_PARAMETER", "too long"),
    ],
)
def test_invalid_pop_is_refused(tmp_path: Path, fields: dict[str, Any], code: str, remark: str) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0")
        response = await pop_response(peer, **fields)
        assert (response.code, remark in response.remark) == (ResponseCode[code], True), response.remark
        assert bodies(await pop(peer)) == [b"0"]

    with_broker(story, settings_of(tmp_path))


def test_pop_needs_the_timer(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0")
        response = await pop_response(peer)
        assert (response.code, "timerWheelEnable" in response.remark) == (ResponseCode.SYSTEM_ERROR, True)

    with_broker(story, settings_of(tmp_path, timer_wheel_enable=False))


def test_invalid_acks_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "0")
        (found,) = await pop(peer)
        codes = ResponseCode
        for fields, code in (
            ({"offset": "999"}, codes.NO_MESSAGE),
            ({"offset": "-1"}, codes.NO_MESSAGE),
            ({"queueId": "99"}, codes.MESSAGE_ILLEGAL),
            ({"topic": "No"}, codes.TOPIC_NOT_EXIST),
            ({"extraInfo": "1 2 3"}, codes.INVALID_PARAMETER),
            ({"extraInfo": ""}, codes.INVALID_PARAMETER),
            ({"extraInfo": "a b c d e f g h"}, codes.INVALID_PARAMETER),
            ({"extraInfo": "0 1 60000 4 0 broker-a 0 0"}, codes.SUCCESS),  # forged: of an earlier process
            ({"consumerGroup": "Foreign"}, codes.SUCCESS),
        ):
            assert (await ack(peer, found, **fields)).code == code, fields
        assert (await change(peer, found, 0)).code == codes.INVALID_PARAMETER
        assert (await change(peer, found, 2**60)).code == codes.INVALID_PARAMETER
        assert (await change(peer, found, 5, offset="1")).code == codes.NO_MESSAGE
        assert await committed(peer) == 0
        assert figure(peer, "pop_in_flight") == 1

    with_broker(story, settings_of(tmp_path))

"""Requests about lite topics to a broker, as RocketMQ's proxy sends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.hot_headers import PullMessageHeader
from store.message.validate import LMQ_TOPIC_PREFIX
from tests.actors.broker.brokers import HOLD_MS, Peer, run_now, settings_of, with_broker
from tests.actors.broker.features.lite.lite_peers import (
    CLIENT,
    GROUP,
    TOPIC,
    ack,
    change,
    create_group,
    create_topic,
    end_of,
    pop,
    pop_response,
    received,
    send,
    sync,
    with_lite_broker,
)
from tests.actors.broker.features.pop.pops import pop_response as pop_queues
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async


def test_lite_message_is_received_and_acked(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "a", "a0", "a1")
        await send(peer, "b", "b0")
        assert (await pop_response(peer)).code == ResponseCode.POLLING_TIMEOUT  # not subscribed
        assert (await sync(peer, "PARTIAL_ADD", "a")).code == 0
        response = await pop_response(peer)
        assert (response.code, response.remark) == (0, "FOUND")
        assert response.ext.keys() == {"popTime", "invisibleTime", "reviveQid", "orderCountInfo"}
        assert (response.ext["reviveQid"], response.ext["orderCountInfo"]) == ("999", "0;0")
        messages = received(response)
        assert [(each.name, each.offset, each.body) for each in messages] == [
            ("a", 0, b"a0"),
            ("a", 1, b"a1"),
        ]
        assert await pop(peer) == []  # blocked
        for each in messages:
            assert (await ack(peer, each)).code == 0
        ext = {"consumerGroup": GROUP, "topic": f"{LMQ_TOPIC_PREFIX}${TOPIC}$a", "queueId": "0"}
        committed = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        assert (committed.code, committed.ext.get("offset")) == (0, "2")
        await send(peer, "a", "a2")
        assert [each.body for each in await pop(peer)] == [b"a2"]

    with_lite_broker(story, tmp_path)


class TickingClock(ClockAtRest):
    """A clock whose wall time is another one each time that it is read."""

    def wall_ms(self) -> int:
        self.advance(1)
        return super().wall_ms()


def test_receipt_has_the_time_of_its_claim(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await sync(peer, "PARTIAL_ADD", "a")
        await send(peer, "a", "a0", "a1")
        [first] = await pop(peer, maxMsgNum=1)
        assert (await ack(peer, first)).code == 0
        assert [each.body for each in await pop(peer)] == [b"a1"]

    with_lite_broker(story, tmp_path, TickingClock())


def test_waiting_pop_is_resumed_by_a_message_and_by_an_ack(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await sync(peer, "PARTIAL_ADD", "a")
        waiting = asyncio.create_task(pop_response(peer, pollTime=HOLD_MS))
        await peer.until_held(1)
        await send(peer, "other", "x")
        await send(peer, "a", "a0")
        [first] = received(await waiting)
        assert first.body == b"a0"
        waiting = asyncio.create_task(pop_response(peer, pollTime=HOLD_MS))
        await peer.until_held(1)
        await send(peer, "a", "a1")
        assert (await ack(peer, first)).code == 0
        assert [each.body for each in received(await waiting)] == [b"a1"]

    with_lite_broker(story, tmp_path)


def test_acks_are_checked_as_by_rocketmq(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_group(peer, "Other", "OtherT")
        await send(peer, "a", "0", "1", "2")
        await sync(peer, "PARTIAL_ADD", "a")
        first, second = await pop(peer, maxMsgNum=2)
        code = ResponseCode
        for message, fields, wanted in (
            (first, {"consumerGroup": "Other"}, code.INVALID_PARAMETER),
            (first, {"queueId": "1"}, code.INVALID_PARAMETER),
            (replace(first, offset=99), {}, code.NO_MESSAGE),
            (replace(first, offset=2), {}, code.MESSAGE_ILLEGAL),
            (first, {}, code.SUCCESS),
            (first, {}, code.SUCCESS),
            (replace(second, pop_ms=second.pop_ms - 1), {}, code.SUCCESS),
        ):
            assert (await ack(peer, message, **fields)).code == wanted, fields
        assert (await ack(peer, second, revive_queue=3)).code == code.INVALID_PARAMETER
        assert await pop(peer) == []  # the second one is in flight
        assert (await ack(peer, second)).code == 0
        assert [each.body for each in await pop(peer)] == [b"2"]

    with_lite_broker(story, tmp_path)


def test_change_and_suspension_make_messages_visible_again(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await send(peer, "a", "0", "1")
        await sync(peer, "PARTIAL_ADD", "a")
        first, second = await pop(peer)
        await ack(peer, second)
        clock.advance(2)
        response = await change(peer, first, 1_500)
        assert (response.code, response.ext["popTime"]) == (0, str(first.pop_ms))
        assert (response.ext["invisibleTime"], response.ext["reviveQid"]) == ("1502", "999")
        waiting = asyncio.create_task(pop_response(peer, pollTime=HOLD_MS))
        await peer.until_held(1)
        clock.advance(1_500)
        again = received(await waiting)
        assert [(each.offset, each.count) for each in again] == [(0, 1), (1, 1)]
        assert (await change(peer, again[0], 1_000, suspend="true")).code == 0
        waiting = asyncio.create_task(pop_response(peer, pollTime=HOLD_MS))
        await peer.until_held(1)
        clock.advance(1_000)
        assert [each.count for each in received(await waiting)] == [1, 1]

    with_lite_broker(story, tmp_path, clock)


def test_subscription_requests_are_checked(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer, "PlainT", "NORMAL")
        await create_group(peer, "Plain", "PlainT")
        await create_group(peer, "Wild", sub_wildcard="true")
        illegal = ResponseCode.ILLEGAL_OPERATION
        assert (await peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL)).code == illegal
        assert (
            await peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL, body=b'{"subscriptionSet":[]}')
        ).code == illegal
        assert (await sync(peer, "PARTIAL_ADD", "a", client="")).code == 0  # skipped, as by RocketMQ
        refused: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            (("NO_ACTION", "a"), {}),
            (("PARTIAL_ADD", "a"), {"group": "NoGroup"}),
            (("PARTIAL_ADD", "a"), {"group": "Plain", "topic": "PlainT"}),
            (("COMPLETE_ADD", "a"), {"topic": "PlainT"}),
            (("PARTIAL_ADD", "a"), {"group": "Wild"}),
            (("PARTIAL_ADD", "a"), {"offsetOption": {"type": "NOTHING", "value": 0}}),
            (("PARTIAL_ADD", "a"), {"offsetOption": {"type": "OFFSET", "value": -1}}),
            *(((action, name), {}) for action in ("PARTIAL_ADD", "COMPLETE_ADD") for name in BAD_NAMES),
        ]
        for arguments, fields in refused:
            assert (await sync(peer, *arguments, **fields)).code == illegal, (arguments, fields)
        assert (await sync(peer, "PARTIAL_ADD", "x" * 64)).code == 0

    with_lite_broker(story, tmp_path)


BAD_NAMES = ("", "a b", "a$b", "a%b", "a.b", "ä", "x" * 65)


def test_pops_are_checked(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer, "PlainT", "NORMAL")
        await create_group(peer, "Other", "PlainT")
        code = ResponseCode
        for fields, wanted in (
            ({"maxMsgNum": 33}, code.INVALID_PARAMETER),
            ({"maxMsgNum": 0}, code.INVALID_PARAMETER),
            ({"invisibleTime": 0}, code.INVALID_PARAMETER),
            ({"topic": "PlainT"}, code.INVALID_PARAMETER),
            ({"consumerGroup": "Other"}, code.INVALID_PARAMETER),
            ({"topic": "NoTopic"}, code.TOPIC_NOT_EXIST),
        ):
            assert (await pop_response(peer, **fields)).code == wanted, fields

    with_lite_broker(story, tmp_path)


def test_lite_group_neither_pulls_nor_pops_queues(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        pull = PullMessageHeader(GROUP, TOPIC, 0, 0, sys_flag=0, subscription="*").to_ext()
        assert (await peer.ask(RequestCode.PULL_MESSAGE, pull)).code == ResponseCode.INVALID_PARAMETER
        refused = await pop_queues(peer, TOPIC, group=GROUP)
        assert refused.code == ResponseCode.INVALID_PARAMETER

    with_lite_broker(story, tmp_path)


def test_offset_option_and_removal_of_a_client(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "a", "0", "1", "2")
        await sync(peer, "PARTIAL_ADD", "a", offsetOption={"type": "POLICY", "value": 2})
        assert await pop(peer) == []
        await sync(peer, "PARTIAL_ADD", "a", offsetOption={"type": "TAIL_N", "value": 2})
        assert [each.body for each in await pop(peer)] == [b"1", b"2"]
        await sync(peer, "PARTIAL_ADD", "a", offsetOption={"type": "POLICY", "value": 1})
        assert len(await pop(peer, maxMsgNum=1)) == 1
        assert (await sync(peer, "COMPLETE_REMOVE")).code == 0
        await sync(peer, "COMPLETE_ADD", "a", client="another")
        assert await pop(peer) == []

    with_lite_broker(story, tmp_path)


def test_session_continues_after_a_restart(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)

    async def before(peer: Peer) -> None:
        await create_topic(peer)
        await create_group(peer)
        await send(peer, "a", "0", "1", "2")
        await sync(peer, "PARTIAL_ADD", "a")
        messages = await pop(peer, maxMsgNum=2)
        await ack(peer, messages[0])

    async def after(peer: Peer) -> None:
        refused = await pop_response(peer, needsSubscription="true")
        assert refused.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        waiting = asyncio.create_task(pop_response(peer, pollTime=HOLD_MS))
        await peer.until_held(1)
        await sync(peer, "COMPLETE_ADD", "a", client=CLIENT)
        messages = received(await waiting)
        assert [(each.offset, each.count) for each in messages] == [(1, 0), (2, 0)]
        assert [each.body for each in messages] == [b"1", b"2"]
        again = await pop_response(peer, needsSubscription="true")
        assert again.code == ResponseCode.POLLING_TIMEOUT

    with_broker(before, settings)
    with_broker(after, settings)


def test_client_is_notified_that_another_one_has_taken_over(tmp_path: Path) -> None:
    notices: list[dict[str, str]] = []

    def notified(context: RequestContext) -> None:
        notices.append(dict(context.command.ext))

    async def story(peer: Peer) -> None:
        pushed = RequestTable()
        pushed.add(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, notified)
        loser = Peer(peer.broker, pushed)
        await sync(loser, "PARTIAL_ADD", "a", "b", client="x1")
        await sync(peer, "PARTIAL_ADD", "a", client="x2")
        await eventually_async(lambda: bool(notices))
        assert notices == [{"liteTopic": "a", "consumerGroup": GROUP, "clientId": "x1"}]
        await loser.client.close()
        await sync(peer, "PARTIAL_ADD", "b", client="x2")  # the loser is gone
        await send(peer, "b", "0")
        assert [each.body for each in await pop(peer, "x2")] == [b"0"]

    with_lite_broker(story, tmp_path, sub_model="Exclusive")


def test_lite_topic_expires_with_its_offsets_and_begins_again(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await create_topic(peer, **{"lite.topic.expiration": "20"})
        await sync(peer, "PARTIAL_ADD", "old", "new")
        await send(peer, "old", "0", "1")
        clock.advance(1_199_000)
        await send(peer, "new", "0")
        for each in await pop(peer):
            await ack(peer, each)
        await run_now(peer.broker, "lite-expiry")
        assert (await end_of(peer, "old"), await end_of(peer, "new")) == (2, 1)
        clock.advance(3_000)
        await run_now(peer.broker, "lite-expiry")
        assert (await end_of(peer, "old"), await end_of(peer, "new")) == (0, 1)
        await sync(peer, "COMPLETE_ADD", "old", "new")
        await send(peer, "old", "again")
        assert [(each.offset, each.body) for each in await pop(peer)] == [(0, b"again")]

    with_lite_broker(story, tmp_path, clock)


def test_deleted_topic_takes_its_lite_topics_along(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await sync(peer, "PARTIAL_ADD", "a")
        await send(peer, "a", "0")
        await ack(peer, (await pop(peer))[0])
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
        await create_topic(peer)
        assert await end_of(peer, "a") == 0
        await send(peer, "a", "again")
        assert [(each.offset, each.body) for each in await pop(peer)] == [(0, b"again")]

    with_lite_broker(story, tmp_path)


def test_settings_of_lite_topics_have_their_effect_at_once(tmp_path: Path) -> None:
    clock = ClockAtRest()

    async def story(peer: Peer) -> None:
        await create_topic(peer, **{"lite.topic.expiration": "0"})
        names = "enableLmqQuota=true\nmaxLmqConsumeQueueNum=1\nminLiteTTl=5000\nmaxLiteSubscriptionCount=2\n"
        names += "liteSubscriptionCheckTimeoutMills=1000\n"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=names.encode())).code == 0
        await sync(peer, "PARTIAL_ADD", "a", "b")
        assert (await sync(peer, "PARTIAL_ADD", "c")).code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        await send(peer, "a", "0")
        response = await peer.send(TOPIC, b"0", 2, "__LITE_TOPIC\x01b\x02")
        assert response.code == ResponseCode.LMQ_QUOTA_EXCEEDED
        await send(peer, "a", "1")
        assert await end_of(peer, "a") == 2
        clock.advance(2_000)
        await run_now(peer.broker, "lite-scan")
        assert (await sync(peer, "PARTIAL_ADD", "c", "d")).code == 0  # the earlier two are gone
        clock.advance(6_000)
        await run_now(peer.broker, "lite-expiry")
        assert await end_of(peer, "a") == 0
        await send(peer, "b", "0")

    with_lite_broker(story, tmp_path, clock)

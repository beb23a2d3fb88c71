"""Live settings of a broker: each change has its effect on the next request, without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from actors.broker.core.admission import Admission
from actors.broker.features.transactions.checks import Verdict, verdict_on
from actors.transport.request import Cost
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import QueryConsumerOffsetHeader, TopicHeader
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.remoting_errors import Refused
from store.common.live_settings import LiveSettings
from store.message.message import MessageExt
from store.message_store import MessageStore
from tests.actors.broker.brokers import HOLD_MS, SUBSCRIPTION, Peer, settings_of, with_broker
from tests.actors.broker.core.test_admission import request_of


async def queues_of(peer: Peer, topic: str) -> int:
    config = orjson.loads((await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic).to_ext())).body)
    return int(config["writeQueueNums"])


def test_auto_create_settings_apply_to_the_next_topic_and_group(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        live = peer.broker.live
        assert (await peer.send("FIRST")).code == ResponseCode.TOPIC_NOT_EXIST
        live.update({"auto_create_topics": True, "default_topic_queues": 2})
        assert (await peer.send("FIRST", default_topic_queue_nums=16)).code == 0
        live.update({"default_topic_queues": 6})
        assert (await peer.send("SECOND", default_topic_queue_nums=16)).code == 0
        assert [await queues_of(peer, topic) for topic in ("FIRST", "SECOND")] == [2, 6]
        live.update({"auto_create_topics": False})
        assert (await peer.send("THIRD")).code == ResponseCode.TOPIC_NOT_EXIST

        live.update({"auto_create_groups": False})
        assert (await peer.pull("FIRST")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        live.update({"auto_create_groups": True})
        assert (await peer.pull("FIRST")).code == 0

    with_broker(story, settings_of(tmp_path, auto_create_topics=False))


def test_changed_size_limits_apply_to_the_next_request(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        live = peer.broker.live
        for _ in range(3):
            assert (await peer.send("T", b"12345")).code == 0
        live.update({"store": {"max_message_bytes": 4}})
        assert "exceeds max_message_bytes 4" in ((await peer.send("T", b"12345")).remark or "")
        assert len(await peer.messages("T")) == 3
        live.update({"max_topics": 1, "max_groups": 1})
        assert "max_topics = 1" in ((await peer.send("U", b"1")).remark or "")
        other = PullMessageHeader("OTHER", "T", 0, 0, sys_flag=SUBSCRIPTION, subscription="*").to_ext()
        assert "max_groups = 1" in ((await peer.ask(RequestCode.PULL_MESSAGE, other)).remark or "")
        live.update({"max_topics": 1_000, "max_groups": 1_000})
        assert (await peer.send("U", b"1")).code == 0
        assert (await peer.ask(RequestCode.PULL_MESSAGE, other)).code == 0
        live.update({"pull_max_messages": 2})
        assert len(await peer.messages("T")) == 2
        live.update({"pull_max_bytes": 1})
        assert len(await peer.messages("T")) == 1

    with_broker(story, settings_of(tmp_path))


def test_changed_pull_waits_apply_to_the_next_pull(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")

        async def codes_at_end() -> list[int]:
            pulls = (peer.pull("T", 1, wait_ms=HOLD_MS), peer.pull_records("T", 1, wait_ms=HOLD_MS))
            return [each.code for each in await asyncio.gather(*pulls)]

        # Each ends because of the setting: the pulls request to be held for a day.
        peer.broker.live.update({"max_hold_ms": 0})
        assert await codes_at_end() == [ResponseCode.PULL_NOT_FOUND] * 2
        peer.broker.live.update({"max_hold_ms": HOLD_MS, "long_polling": False})
        assert await codes_at_end() == [ResponseCode.PULL_NOT_FOUND] * 2
        peer.broker.live.update({"long_polling": True})
        waiting = asyncio.ensure_future(codes_at_end())
        await peer.until_held(2)
        await peer.send("T")
        assert await waiting == [0, 0]

    with_broker(story, settings_of(tmp_path))


def test_changed_start_of_new_topics_applies_to_the_next_query(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        query = QueryConsumerOffsetHeader("G", "T", 0).to_ext()
        for is_from_start, code in ((False, ResponseCode.QUERY_NOT_FOUND), (True, ResponseCode.SUCCESS)):
            peer.broker.live.update({"consume_new_topics_from_start": is_from_start})
            assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, query)).code == code

    with_broker(story, settings_of(tmp_path))


def test_changed_rate_and_pending_limits_apply_to_the_next_request(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        live = peer.broker.live
        await peer.send("T")
        live.update({"max_sends_per_s": 1})
        clock.advance(1_000)
        assert (await peer.send("T")).code == 0
        assert "(max_sends_per_s 1)" in ((await peer.send("T")).remark or "")
        live.update({"max_sends_per_s": 0})
        assert (await peer.send("T")).code == 0

        held = asyncio.ensure_future(peer.pull("T", 3, wait_ms=HOLD_MS))
        await peer.until_held(1)
        live.update({"max_pending_requests": 1})
        assert "(max_pending_requests 1)" in ((await peer.pull("T")).remark or "")
        live.update({"max_pending_requests": 100})
        assert (await peer.send("T")).code == 0
        assert (await held).code == 0

    with_broker(story, settings_of(tmp_path), clock)


@pytest.mark.parametrize(
    ("name", "value", "prepare"),
    [
        ("send_queue_capacity", 3, lambda admission: admission.end_turn()),
        ("os_page_cache_busy_ms", 5, lambda admission: admission.note_lag(6_000_000)),
    ],
)
def test_changed_limits_of_busy_brokers_apply_to_the_next_send(
    tmp_path: Path, clock, name: str, value: int, prepare: Callable[[Admission], None]
) -> None:
    settings = settings_of(tmp_path)
    positions = SimpleNamespace(waiting=3, written=5_000, confirmed=1_000)
    store = cast("MessageStore", SimpleNamespace(positions=positions))
    admission = Admission(settings, store, clock)
    prepare(admission)
    admission(request_of(Cost.SEND))
    LiveSettings(settings).update({name: value})
    prepare(admission)
    with pytest.raises(Refused, match=rf"{name} {value}\b"):
        admission(request_of(Cost.SEND))


def test_changed_transaction_limits_apply_to_the_next_check(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, transaction_timeout_ms=1_000, transaction_check_max=5)
    live = LiveSettings(settings)
    half = MessageExt("T", b"", born_timestamp=0, store_timestamp=0)
    checked_twice = replace_properties(half, TRANSACTION_CHECK_TIMES="2")
    immune = replace_properties(half, CHECK_IMMUNITY_TIME_IN_SECONDS="7200")

    def verdicts() -> list[Verdict]:
        now_ms = 3_700_000
        return [
            verdict_on(half, 1_500, settings),
            verdict_on(checked_twice, 1_500, settings),
            verdict_on(immune, now_ms, settings),
        ]

    assert verdicts() == [Verdict.CHECK, Verdict.CHECK, Verdict.WAIT]
    live.update({"transaction_timeout_ms": 2_000})
    assert verdicts() == [Verdict.STOP, Verdict.CHECK, Verdict.WAIT]
    live.update({"transaction_check_max": 2})
    assert verdicts() == [Verdict.STOP, Verdict.DISCARD, Verdict.WAIT]
    live.update({"store": {"file_reserved_time_h": 1}})
    assert verdicts() == [Verdict.STOP, Verdict.DISCARD, Verdict.CHECK]
    live.update({"transaction_check_max": 0})
    assert verdicts() == [Verdict.DISCARD] * 3


def replace_properties(half: MessageExt, **properties: Any) -> MessageExt:
    return replace(half, properties=properties)

"""Pulls with SQL92 filters over the socket: in the pull and in heartbeats, mistakes, long backlogs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.wire.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import PullMessageHeader
from store.message.record import decode_records
from tests.actors.broker.brokers import HOLD_MS, SUSPEND, Peer, settings_of, with_broker
from tests.eventually import NEVER_S

SQL = "SQL92"


@pytest.fixture(autouse=True)
def unlimited_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no read stop early because the machine is busy: it would return a part of the matches."""
    monkeypatch.setattr("store.reading.message_reader._FILTER_BUDGET_NS", int(NEVER_S * 1e9))


async def send(peer: Peer, body: bytes, **properties: str) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    assert (await peer.send("T", body, properties=text)).code == ResponseCode.SUCCESS


async def subscribe(peer: Peer, expression: str, version: int = 1) -> RemotingCommand:
    subscription = SubscriptionData("T", expression, sub_version=version, expression_type=SQL)
    beat = HeartbeatData("c1", [ConsumerData("G", subscriptions=[subscription])])
    return await peer.ask(RequestCode.HEART_BEAT, body=beat.encode())


async def pull_subscribed(peer: Peer, offset: int = 0, version: int = 1, wait_ms: int = 0) -> RemotingCommand:
    header = PullMessageHeader("G", "T", 0, offset, sys_flag=SUSPEND, sub_version=version,
                               suspend_timeout_millis=wait_ms, expression_type=SQL)  # fmt: skip
    return await peer.ask(RequestCode.PULL_MESSAGE, header.to_ext())


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in decode_records(answer.body)]


def test_pull_with_a_sql_filter_returns_the_matching_messages(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for number in range(8):
            await send(peer, b"%d" % number, a=str(number * 5), region="xyz"[number % 3])
        expression = "a > 10 AND region IN ('x', 'y')"
        pulled = await peer.pull("T", tags=expression, expression_type=SQL)
        assert bodies(pulled) == [b"3", b"4", b"6", b"7"]
        records = await peer.pull_records("T", subscription=expression, expression_type=SQL)
        assert bodies(records) == [b"3", b"4", b"6", b"7"]
        none = await peer.pull("T", tags="a < 0", expression_type=SQL)
        assert (none.code, none.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "8")

    with_broker(story, settings_of(tmp_path))


def test_pull_uses_the_sql_filter_of_the_groups_heartbeat(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, b"0", a="5")
        await send(peer, b"1", a="15")
        assert (await subscribe(peer, "a > 10")).code == ResponseCode.SUCCESS
        assert bodies(await pull_subscribed(peer)) == [b"1"]
        assert (await subscribe(peer, "a < 10", version=2)).code == ResponseCode.SUCCESS
        assert bodies(await pull_subscribed(peer, version=2)) == [b"0"]

    with_broker(story, settings_of(tmp_path))


def test_held_pull_returns_the_first_message_that_matches(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, b"0", a="5")
        held = asyncio.create_task(peer.pull("T", 1, wait_ms=HOLD_MS, tags="a > 10", expression_type=SQL))
        await peer.until_held(1)
        await send(peer, b"1", a="5")
        skipped = await held  # the client pulls again from the next offset
        assert (skipped.code, skipped.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
        held = asyncio.create_task(peer.pull("T", 2, wait_ms=HOLD_MS, tags="a > 10", expression_type=SQL))
        await peer.until_held(1)
        await send(peer, b"2", a="15")
        assert bodies(await held) == [b"2"]

    with_broker(story, settings_of(tmp_path))


def test_new_sql_filter_completes_a_held_pull(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, b"0", a="5")
        await subscribe(peer, "a > 10")
        held = asyncio.create_task(pull_subscribed(peer, 1, wait_ms=HOLD_MS))
        await peer.until_held(1)
        await subscribe(peer, "a > 10")  # the same filter: the pull stays held
        await peer.until_held(1)
        await subscribe(peer, "a > 20", version=2)
        assert (await held).ext["nextBeginOffset"] == "1"

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("a > > 1", "unexpected '> 1'"),
        ("a = 1 OR " * 12_000 + "a = 2", "over the limit of"),
        ("(" * 1000 + "a = 1" + ")" * 1000, "nested more than"),
        ("", "the expression is empty"),
        ("a\x00 > 1", "unexpected"),
    ],
)
def test_invalid_sql_filter_is_refused_in_each_request(tmp_path: Path, expression: str, remark: str) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, b"0", a="1")
        assert (await subscribe(peer, expression)).code == ResponseCode.SUCCESS  # as in RocketMQ
        answers = [
            await peer.pull("T", tags=expression, expression_type=SQL),
            await peer.pull_records("T", subscription=expression, expression_type=SQL),
            await pull_subscribed(peer),
        ]
        for answer in answers:
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert remark in answer.remark
            assert "(at character " in answer.remark
        assert bodies(await peer.pull("T", tags="a = 1", expression_type=SQL)) == [b"0"]

    with_broker(story, settings_of(tmp_path))


def test_sql_filter_without_a_match_advances_over_a_long_backlog(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(2000):
            await peer.send("T", properties="a\x011\x02")
        offset, pulls = 0, 0
        while offset < 2000:
            pull = await peer.pull_records("T", offset, subscription="a > 1", expression_type=SQL)
            assert pull.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert offset < int(pull.ext["nextBeginOffset"]) <= offset + 800  # RocketMQ's limit of one pull
            offset, pulls = int(pull.ext["nextBeginOffset"]), pulls + 1
        assert pulls == 3

    with_broker(story, settings_of(tmp_path))

"""What a pull asks for beyond any limit, or below it, and what it commits where that is no offset."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.broker.reading import pull
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.hot_headers import PullMessageHeader
from tests.actors.broker.brokers import SUSPEND, Peer, settings_of, with_broker

AN_HOUR_MS = 3_600_000


async def pull_with(peer: Peer, sys_flag: int, offset: int = 0, **header: Any) -> RemotingCommand:
    flags = pull.SUBSCRIPTION | sys_flag
    asked = PullMessageHeader("CG", "T", 0, offset, sys_flag=flags, subscription="*", **header)
    return await peer.ask(RequestCode.PULL_MESSAGE, asked.to_ext())


@pytest.mark.parametrize("wanted", [0, -1, -(1 << 31)])
def test_who_asks_for_no_message_or_byte_gets_one_message(tmp_path: Path, wanted: int) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T")
        assert (await peer.pull("T", max_msg_nums=wanted)).ext["count"] == "1"
        assert (await peer.pull_records("T", max_messages=wanted)).ext["count"] == "1"
        assert (await peer.pull_records("T", max_bytes=wanted)).ext["count"] == "1"

    with_broker(story, settings_of(tmp_path))


def test_who_asks_for_any_number_of_bytes_gets_no_more_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(10):
            await peer.send("T", b"x" * 1000)
        found = await peer.pull_records("T", max_bytes=(1 << 31) - 1)
        assert 1000 < len(found.body) <= 3000

    monkeypatch.setattr(pull, "PULL_RECORDS_BYTES_MAX", 3000)
    with_broker(story, settings_of(tmp_path))


def test_nobody_waits_longer_than_a_pull_may(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        for answer in (
            await peer.pull("T", 1, wait_ms=AN_HOUR_MS),
            await peer.pull_records("T", 1, wait_ms=AN_HOUR_MS),
        ):
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")

    with_broker(story, settings_of(tmp_path, max_hold_ms=30))


def test_who_does_not_say_that_it_may_wait_is_answered_at_once(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        answer = await pull_with(peer, 0, 1, suspend_timeout_millis=AN_HOUR_MS)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        waiting = asyncio.create_task(pull_with(peer, SUSPEND, 1, suspend_timeout_millis=AN_HOUR_MS))
        await peer.send("T")
        assert (await waiting).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path))


def test_who_may_wait_is_answered_at_once_where_there_is_an_answer(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="TAGS\x01a\x02")
        assert (await peer.pull("T", 0, wait_ms=AN_HOUR_MS)).ext["count"] == "1"
        nothing = await peer.pull("T", 0, wait_ms=AN_HOUR_MS, tags="b")
        beyond = await peer.pull("T", 9, wait_ms=AN_HOUR_MS)
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert beyond.code == ResponseCode.PULL_OFFSET_MOVED

    with_broker(story, settings_of(tmp_path, max_hold_ms=AN_HOUR_MS))


def test_a_pull_commits_an_offset_and_no_other_number(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await pull_with(peer, pull.COMMIT_OFFSET, commit_offset=-1)
        await peer.pull_records("T", commit_offset=-1)
        await pull_with(peer, 0, commit_offset=1)
        assert (await peer.committed("CG", "T")).code == ResponseCode.QUERY_NOT_FOUND
        await pull_with(peer, pull.COMMIT_OFFSET, commit_offset=0)
        assert (await peer.committed("CG", "T")).ext["offset"] == "0"
        await peer.pull_records("T", commit_offset=1)
        assert (await peer.committed("CG", "T")).ext["offset"] == "1"

    with_broker(story, settings_of(tmp_path))

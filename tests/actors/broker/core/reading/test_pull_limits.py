"""Limits of a pull: messages, bytes, wait time and committed offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.broker.core.reading import pull
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import PullMessageHeader
from tests.actors.broker.brokers import SUSPEND, Peer, settings_of, with_broker

AN_HOUR_MS = 3_600_000


async def pull_with(peer: Peer, sys_flag: int, offset: int = 0, **header: Any) -> RemotingCommand:
    flags = pull.SUBSCRIPTION | sys_flag
    request = PullMessageHeader("CG", "T", 0, offset, sys_flag=flags, subscription="*", **header)
    return await peer.ask(RequestCode.PULL_MESSAGE, request.to_ext())


@pytest.mark.parametrize("limit", [0, -1, -(1 << 31)])
def test_pull_with_a_limit_below_one_returns_one_message(tmp_path: Path, limit: int) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T")
        assert (await peer.pull("T", max_msg_nums=limit)).ext["count"] == "1"
        assert (await peer.pull_records("T", max_messages=max(limit, 0))).ext["count"] == "1"
        assert (await peer.pull_records("T", max_bytes=max(limit, 0))).ext["count"] == "1"

    with_broker(story, settings_of(tmp_path))


def test_pull_records_never_exceeds_the_byte_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(10):
            await peer.send("T", b"x" * 1000)
        found = await peer.pull_records("T", max_bytes=(1 << 31) - 1)
        assert 1000 < len(found.body) <= 3000

    monkeypatch.setattr(pull, "PULL_RECORDS_BYTES_MAX", 3000)
    with_broker(story, settings_of(tmp_path))


def test_pull_is_held_no_longer_than_max_hold_ms(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        for answer in (
            await peer.pull("T", 1, wait_ms=AN_HOUR_MS),
            await peer.pull_records("T", 1, wait_ms=AN_HOUR_MS),
        ):
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")

    with_broker(story, settings_of(tmp_path, max_hold_ms=30))


def test_pull_without_suspend_flag_is_not_held(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        answer = await pull_with(peer, 0, 1, suspend_timeout_millis=AN_HOUR_MS)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        waiting = asyncio.create_task(pull_with(peer, SUSPEND, 1, suspend_timeout_millis=AN_HOUR_MS))
        await peer.send("T")
        assert (await waiting).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path))


def test_pull_with_a_result_is_not_held(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="TAGS\x01a\x02")
        assert (await peer.pull("T", 0, wait_ms=AN_HOUR_MS)).ext["count"] == "1"
        nothing = await peer.pull("T", 0, wait_ms=AN_HOUR_MS, tags="b")
        beyond = await peer.pull("T", 9, wait_ms=AN_HOUR_MS)
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert beyond.code == ResponseCode.PULL_OFFSET_MOVED

    with_broker(story, settings_of(tmp_path, max_hold_ms=AN_HOUR_MS))


def test_pull_commits_only_non_negative_offsets(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await pull_with(peer, pull.COMMIT_OFFSET, commit_offset=-1)
        await pull_with(peer, 0, commit_offset=1)
        assert (await peer.committed("CG", "T")).code == ResponseCode.QUERY_NOT_FOUND
        await pull_with(peer, pull.COMMIT_OFFSET, commit_offset=0)
        assert (await peer.committed("CG", "T")).ext["offset"] == "0"
        await peer.pull_records("T", commit_offset=1)
        assert (await peer.committed("CG", "T")).ext["offset"] == "1"

    with_broker(story, settings_of(tmp_path))

"""A broker whose disk fills up, and cleaning by hand over RocketMQ's request codes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.headers import CreateTopicHeader, DeleteTopicHeader
from store.disk.disk_use import DiskUse
from store.message.record import decode_records
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async

BODY = b"x" * 40_000
SMALL_LOG = {"commit_log_file_bytes": 1 << 16, "max_message_bytes": 50_000, "delete_files_interval_ms": 0}


class Disk:
    """A disk as full as the test says."""

    def __init__(self, percent: int = 10) -> None:
        self.percent = percent

    def __call__(self, path: Path) -> DiskUse:
        return DiskUse(self.percent * 10, 1000 - self.percent * 10)


async def until(is_so: Callable[[], bool], clock: ClockAtRest) -> None:
    """Let the broker's turns and seconds go on until something is so."""

    def is_so_later() -> bool:
        clock.advance(1_000)
        return is_so()

    await eventually_async(is_so_later)


def test_a_full_disk_is_told_to_senders_with_its_numbers_and_is_over_by_itself(tmp_path: Path, clock) -> None:
    disk = Disk()

    async def story(peer: Peer) -> None:
        store = peer.broker.graph.loop.store
        await peer.send("T", b"before")
        disk.percent = 91
        await until(lambda: store.write_refusal is not None, clock)

        refused = await peer.send("T", b"refused")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "91 % full, 90 bytes are free: writes are refused above 90 %" in refused.remark
        assert [message.body for message in await peer.messages("T")] == [b"before"]
        assert "91 % full" in peer.broker.describe()["write_refusal"]

        disk.percent = 60
        await until(lambda: store.write_refusal is None, clock)
        assert (await peer.send("T", b"after")).code == 0

    with_broker(story, settings_of(tmp_path), clock, disk)


def test_expired_files_and_queues_go_by_hand(tmp_path: Path, clock) -> None:
    settings = settings_of(tmp_path, SMALL_LOG)

    async def story(peer: Peer) -> None:
        store = peer.broker.graph.loop.store
        for topic in ("Old", "T", "T", "T"):
            await peer.send(topic, BODY)
        await peer.commit("CG", "Old", 1)
        for path in (settings.store_root / "commitlog").iterdir():
            os.utime(path, (0, 0))

        assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        await until(lambda: store.positions.min == 3 << 16, clock)
        assert await peer.offset(RequestCode.GET_MIN_OFFSET, "T") == 2
        moved = await peer.pull("T", 0)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")

        assert (await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Old") == 0
        assert (await peer.committed("CG", "Old")).code == ResponseCode.QUERY_NOT_FOUND
        await peer.send("Old", b"new")
        assert [message.body for message in decode_records((await peer.pull("Old", 0)).body)] == [b"new"]

    with_broker(story, settings, clock, Disk())


def test_queues_of_topics_that_do_not_exist_go_by_hand(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("Unknown", b"1")
        await peer.send("T", b"2")
        peer.broker.graph.tables.topics.table.remove("Unknown")  # as after a takeover of a store

        assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        queues = settings_of(tmp_path).store_root / "consumequeue"
        assert not (queues / "Unknown").exists()
        assert (queues / "T").exists()

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_topic_goes_without_the_loop_waiting_for_the_disk(
    flush: str, tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    goes_on, on_loop = threading.Event(), list[str]()

    def hangs(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def hanging(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == loop_thread:
                on_loop.append(name)
            else:
                goes_on.wait(LIMIT_S)
            return call(*arguments, **named)

        return hanging

    async def story(peer: Peer) -> None:
        await peer.send("Doomed", b"1")
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        with monkeypatch.context() as patched:
            for name in ("fsync", "fdatasync", "unlink", "rmdir"):
                patched.setattr(os, name, hangs(name))
            header = DeleteTopicHeader("Doomed").to_ext()
            deletion = asyncio.create_task(peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header))
            queues = settings_of(tmp_path).store_root / "consumequeue"
            await until(lambda: not (queues / "Doomed").exists(), clock)
            assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 0
            assert not deletion.done()  # it is not durable yet
            refused = await peer.send("Doomed", b"2")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "topic 'Doomed' is being deleted" in refused.remark
            goes_on.set()
            assert (await deletion).code == 0
            await until(lambda: not list(queues.parent.glob("removed-*")), clock)
        assert on_loop == []

    with_broker(story, settings_of(tmp_path, {"flush": flush}), clock)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_topic_goes_at_once_though_nothing_else_turns_the_loop(
    flush: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended in the background asks for its turn itself, and so does what is noted in slices."""
    queues = 350  # a checkpoint notes 100 a turn

    async def story(peer: Peer) -> None:
        create = CreateTopicHeader("Kept", queues, queues, 6).to_ext()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)).code == 0
        for queue_id in range(queues):
            await peer.send("Kept", b"1", queue_id)
        assert (await peer.send("Doomed", b"1")).code == 0
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        header = DeleteTopicHeader("Doomed").to_ext()
        deletion = peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        assert (await asyncio.wait_for(deletion, LIMIT_S)).code == 0

    monkeypatch.setattr("actors.broker.service.HOUSEKEEPING_MS", 1_000_000_000)
    with_broker(story, settings_of(tmp_path, {"flush": flush}))


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_is_acknowledged_while_a_topic_goes_is_there_afterwards(flush: str, tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        header = DeleteTopicHeader("Doomed").to_ext()
        for round_number in range(5):
            await peer.send("Doomed", b"goes")
            deletion = asyncio.create_task(peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header))
            await asyncio.sleep(0)  # it is on its way before what is sent now
            acknowledged = set()
            while not deletion.done():
                body = f"{round_number}-{len(acknowledged)}".encode()
                if (await peer.send("Doomed", body)).code == 0:
                    acknowledged.add(body)
            assert (await peer.send("Doomed", b"after")).code == 0
            kept = {message.body for message in await peer.messages("Doomed")}
            assert kept == acknowledged | {b"after"}

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


def test_a_topic_whose_queues_cannot_be_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    async def story(peer: Peer) -> None:
        await peer.send("Doomed", b"1")
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", refuses)
            header = DeleteTopicHeader("Doomed").to_ext()
            told = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        assert told.code == ResponseCode.SYSTEM_ERROR
        assert "the queues of Doomed could not be removed: Read-only file system" in told.remark
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        assert (await peer.send("Doomed", b"2")).code == 0

    with_broker(story, settings_of(tmp_path))

"""Full disks, topic deletion, and cleaning that an administrator requests."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader, DeleteTopicHeader
from store.disk.disk_use import DiskUse
from store.message.record import decode_records
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async

BODY = b"x" * 40_000
SMALL_LOG = {"commit_log_file_bytes": 1 << 16, "max_message_bytes": 50_000, "delete_files_interval_ms": 0}


class FakeDisk:
    """A disk probe that reports the fill level which the test sets."""

    def __init__(self, percent: int = 10) -> None:
        self.percent = percent

    def __call__(self, path: Path) -> DiskUse:
        return DiskUse(self.percent * 10, 1000 - self.percent * 10)


async def until(predicate: Callable[[], bool], clock: ClockAtRest) -> None:
    """Wait for the predicate, and advance the clock by a second before each check."""

    def advance_and_check() -> bool:
        clock.advance(1_000)
        return predicate()

    await eventually_async(advance_and_check)


def test_full_disk_refuses_sends_until_space_is_free(tmp_path: Path, clock) -> None:
    disk = FakeDisk()

    async def story(peer: Peer) -> None:
        store = peer.store
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


def test_expired_files_and_queues_are_deleted_on_request(tmp_path: Path, clock) -> None:
    settings = settings_of(tmp_path, SMALL_LOG)

    async def story(peer: Peer) -> None:
        store = peer.store
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

    with_broker(story, settings, clock, FakeDisk())


def test_clean_unused_topic_removes_queues_of_unknown_topics(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("Unknown", b"1")
        await peer.send("T", b"2")
        peer.tables.topics.table.remove("Unknown")  # as in a store taken over without its tables

        assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        queues = settings_of(tmp_path).store_root / "consumequeue"
        assert not (queues / "Unknown").exists()
        assert (queues / "T").exists()

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_topic_deletion_does_not_block_the_loop_on_disk(
    flush: str, tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    disk_released, calls_on_loop = threading.Event(), list[str]()

    def blocked(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def call_when_released(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == loop_thread:
                calls_on_loop.append(name)
            else:
                disk_released.wait(LIMIT_S)
            return call(*arguments, **named)

        return call_when_released

    async def story(peer: Peer) -> None:
        await peer.send("Doomed", b"1")
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        with monkeypatch.context() as patched:
            for name in ("fsync", "fdatasync", "unlink", "rmdir"):
                patched.setattr(os, name, blocked(name))
            header = DeleteTopicHeader("Doomed").to_ext()
            deletion = asyncio.create_task(peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header))
            queues = settings_of(tmp_path).store_root / "consumequeue"
            await until(lambda: not (queues / "Doomed").exists(), clock)
            assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 0
            assert not deletion.done()  # the removal is not durable yet
            refused = await peer.send("Doomed", b"2")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "topic 'Doomed' is being deleted" in refused.remark
            disk_released.set()
            assert (await deletion).code == 0
            await until(lambda: not list(queues.parent.glob("removed-*")), clock)
        assert calls_on_loop == []

    with_broker(story, settings_of(tmp_path, {"flush": flush}), clock)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_topic_deletion_finishes_on_an_idle_loop(
    flush: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished background work requests a turn of the loop, and so does a checkpoint written in slices."""
    queues = 350  # a checkpoint covers 100 queues per turn

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
def test_messages_acknowledged_during_topic_deletion_are_kept(flush: str, tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        header = DeleteTopicHeader("Doomed").to_ext()
        for round_number in range(5):
            await peer.send("Doomed", b"deleted")
            deletion = asyncio.create_task(peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header))
            await asyncio.sleep(0)  # the deletion is sent before the messages below
            acknowledged = set()
            while not deletion.done():
                body = f"{round_number}-{len(acknowledged)}".encode()
                if (await peer.send("Doomed", body)).code == 0:
                    acknowledged.add(body)
            assert (await peer.send("Doomed", b"after")).code == 0
            kept = {message.body for message in await peer.messages("Doomed")}
            assert kept == acknowledged | {b"after"}

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


def test_failed_queue_removal_is_reported_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    async def story(peer: Peer) -> None:
        await peer.send("Doomed", b"1")
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", fail)
            header = DeleteTopicHeader("Doomed").to_ext()
            response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "the queues of topic 'Doomed' could not be removed: Read-only file system" in response.remark
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "Doomed") == 1
        assert (await peer.send("Doomed", b"2")).code == 0

    with_broker(story, settings_of(tmp_path))

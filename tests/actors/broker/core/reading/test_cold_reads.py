"""Cold reads, of pages that are not resident: their results, and service of other requests meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from actors.broker.core.loop.off_loop import OffLoop
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    DeleteTopicHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicHeader,
    TopicQueueHeader,
    ViewMessageHeader,
)
from actors.wire.raymq_requests import SplitsBody
from actors.wire.remoting_errors import Closed
from store.disk import residency
from store.message.message_id import decode_message_id
from store.message.record import decode_record, decode_records
from store.upkeep import stale_queues
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async
from tests.store.cold_disk import ColdDisk, make_cold


class SlowDisk:
    """Blocks all cold reads until `release` is called, and counts them in `requested`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requested = 0
        self._gate = threading.Event()
        run = residency.WarmJob.run

        def wait_then_run(job: residency.WarmJob) -> None:
            self.requested += 1
            assert self._gate.wait(LIMIT_S)
            run(job)

        monkeypatch.setattr(residency.WarmJob, "run", wait_then_run)

    def release(self) -> None:
        self._gate.set()

    async def until_requested(self, count: int = 1) -> None:
        await eventually_async(lambda: self.requested >= count)


def cool(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> ColdDisk:
    """Make all pages of the store not resident. Pages that a cold read loads become resident."""
    disk = make_cold(peer.store, monkeypatch)
    run = residency.WarmJob.run

    def run_and_note(job: residency.WarmJob) -> None:
        run(job)
        disk.note(job.ranges)

    monkeypatch.setattr(residency.WarmJob, "run", run_and_note)
    return disk


async def fill(peer: Peer, monkeypatch: pytest.MonkeyPatch, count: int = 40) -> None:
    """Send `count` messages, then make all pages of the store not resident."""
    for number in range(count):
        await peer.send("T", b"%d" % number, properties=f"KEYS\x01k{number}\x02")
    cool(peer, monkeypatch)


def test_cold_reads_return_the_same_results_as_warm_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, monkeypatch)
        assert [each.body for each in await peer.messages("T", 8)] == [b"%d" % n for n in range(8, 40)]
        assert (await peer.pull_records("T")).ext["count"] == "40"
        query = QueryMessageHeader("T", "k7", 32, 0, 1 << 50).to_ext()
        found = await peer.ask(RequestCode.QUERY_MESSAGE, query)
        assert [each.body for each in decode_records(found.body)] == [b"7"]
        stored_ms = decode_records(found.body)[0].store_timestamp
        search = SearchOffsetHeader("T", 0, stored_ms, "LOWER").to_ext()
        assert int((await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)).ext["offset"]) <= 7
        offset = decode_records(found.body)[0].commit_log_offset
        viewed = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).to_ext())
        assert decode_record(viewed.body).body == b"7"
        earliest = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, TopicQueueHeader("T", 0).to_ext())
        assert 0 < int(earliest.ext["timestamp"]) <= stored_ms
        # One for the page with the units and one for the page with the records.
        assert int(str(peer.broker.describe()["cold_reads"])) == 2

    with_broker(story, settings_of(tmp_path))


def test_other_requests_are_served_while_cold_reads_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, monkeypatch)
        disk = SlowDisk(monkeypatch)
        cold = [asyncio.create_task(peer.pull("T", offset)) for offset in range(10)]
        query = QueryMessageHeader("T", "k7", 32, 0, 1 << 50).to_ext()
        search = asyncio.create_task(peer.ask(RequestCode.QUERY_MESSAGE, query))
        await disk.until_requested(4)
        for _ in range(20):
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
        assert not any(task.done() for task in (*cold, search))
        disk.release()
        counts = [int((await task).ext["count"]) for task in cold]
        assert counts == [32] * 9 + [31]
        assert (await search).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path, cold_read_threads=4))


def test_cold_pull_of_a_topic_deleted_meanwhile_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, monkeypatch)
        disk = SlowDisk(monkeypatch)
        cold = asyncio.create_task(peer.pull("T"))
        await disk.until_requested()
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
        disk.release()
        assert (await cold).code == ResponseCode.PULL_NOT_FOUND

    with_broker(story, settings_of(tmp_path))


def test_delayed_message_is_delivered_from_a_cold_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        await fill(peer, monkeypatch, count=1)
        disk = SlowDisk(monkeypatch)
        clock.advance(1_000)
        await disk.until_requested()
        assert (await peer.send("U")).code == ResponseCode.SUCCESS
        disk.release()
        found = decode_records((await peer.pull("T", 1, wait_ms=HOLD_MS)).body)
        assert [each.body for each in found] == [b"late"]

    with_broker(story, settings_of(tmp_path), clock)


def test_cold_reads_over_the_queue_capacity_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, monkeypatch)
        disk = SlowDisk(monkeypatch)
        served = [asyncio.create_task(peer.pull("T", offset)) for offset in range(3)]
        await disk.until_requested()
        refused = await peer.pull("T", 9)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith(
            "[OVERLOAD]system busy, start flow control for a while: 2 reads wait for the disk "
            "(pull_queue_capacity 2), the first of them for "
        )
        disk.release()
        assert {(await task).code for task in served} == {ResponseCode.SUCCESS}

    with_broker(story, settings_of(tmp_path, cold_read_threads=1, pull_queue_capacity=2))


def test_cold_read_that_waits_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, monkeypatch)
        disk = SlowDisk(monkeypatch)
        first = asyncio.create_task(peer.pull("T"))
        await disk.until_requested()
        refused = await peer.pull("T", 9)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control")
        assert "size of queue: 1" in (refused.remark or "")
        disk.release()
        assert (await first).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path, cold_read_threads=1, wait_in_pull_queue_ms=20))


def test_broker_can_stop_while_cold_reads_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[asyncio.Task[RemotingCommand]] = []

    async def story(peer: Peer) -> None:
        await fill(peer, monkeypatch)
        disk = SlowDisk(monkeypatch)
        waiting.extend(asyncio.create_task(peer.pull("T", offset)) for offset in range(3))
        await disk.until_requested()

        async def release_then_stop(off_loop: OffLoop) -> None:
            asyncio.get_running_loop().call_soon(disk.release)  # while `stop` waits for the threads
            await stop(off_loop)

        stop = OffLoop.stop
        monkeypatch.setattr(OffLoop, "stop", release_then_stop)

    with_broker(story, settings_of(tmp_path, cold_read_threads=1))
    assert all(isinstance(task.exception(), Closed) for task in waiting)


async def delete_oldest_file(peer: Peer, monkeypatch: pytest.MonkeyPatch, queues: int) -> list[int]:
    """Delete the oldest CommitLog file without correcting the minimum offsets of the queues, and make the
    store cold.

    Returns:
        The correct minimum offset of each queue.
    """
    monkeypatch.setattr(stale_queues, "_CORRECTIONS_MAX", 0)
    store = peer.store
    positions: list[list[int]] = [[] for _ in range(queues)]
    for number in range(40):
        for queue_id in range(queues):
            sent = await peer.send("T", b"%d" % number, queue_id=queue_id)
            positions[queue_id].append(decode_message_id(sent.ext["msgId"])[1])
    oldest = store.root / "commitlog" / f"{0:020d}"
    os.utime(oldest, (0, 0))
    await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    await eventually_async(lambda: store.positions.min > 0)
    cool(peer, monkeypatch)
    return [next(n for n, at in enumerate(each) if at >= store.positions.min) for each in positions]


def test_splits_after_deletion_of_old_files_are_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The splits have the new minimum offsets, and other requests do not wait for them."""
    queues = 4

    async def story(peer: Peer) -> None:
        expected = await delete_oldest_file(peer, monkeypatch, queues)
        disk = SlowDisk(monkeypatch)
        splits = asyncio.create_task(peer.ask(RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("T").to_ext()))
        first = asyncio.create_task(peer.ask(RequestCode.GET_MIN_OFFSET, TopicQueueHeader("T", 0).to_ext()))
        await disk.until_requested(2)
        assert (await peer.send("U")).code == ResponseCode.SUCCESS
        assert not splits.done()
        disk.release()
        ranges = SplitsBody.decode((await splits).body).queues
        min_offsets = [each.min_offset for each in ranges]
        assert min_offsets == expected
        assert min(min_offsets) > 0
        assert int((await first).ext["offset"]) == min_offsets[0]
        assert disk.requested < 2 * queues  # missing pages of several queues are loaded together

    settings = settings_of(
        tmp_path, {"commit_log_file_bytes": 1 << 14, "preallocate": False}, default_topic_queues=queues
    )
    with_broker(story, settings)

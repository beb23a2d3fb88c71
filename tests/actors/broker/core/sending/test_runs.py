"""SEND_RUNS is admitted and counted like any other send."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.broker.core.admission import Admission
from actors.wire.admin_headers import BrokerStatsHeader
from actors.wire.bodies.broker import BrokerStatsData
from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RequestCode, ResponseCode
from store.commitlog.commit_log import CommitLog
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, hang_disk, settings_of, with_broker
from tests.actors.broker.core.sending.test_sending import send_runs, some_records, some_runs
from tests.eventually import eventually_async


def test_runs_are_refused_while_the_disk_hangs_and_accepted_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        disk_resumes = hang_disk(monkeypatch)
        body = some_runs("T", {0: 2, 1: 1})
        waiting = [asyncio.create_task(send_runs(peer, body)) for _ in range(3)]
        await eventually_async(lambda: peer.store.positions.waiting == 3)
        await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)  # a turn has ended since
        refused = await send_runs(peer, body)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "[OVERLOAD]" in (refused.remark or "")
        assert "3 sends wait for the disk (send_queue_capacity 3)" in (refused.remark or "")
        disk_resumes.set()
        assert [(await task).code for task in waiting] == [ResponseCode.SUCCESS] * 3
        assert (await send_runs(peer, body)).code == ResponseCode.SUCCESS
        assert [len(await peer.messages("T", queue_id=each)) for each in (0, 1)] == [1 + 4 * 2, 4]
        assert peer.broker.describe()["requests_refused"] == 1

    with_broker(story, settings_of(tmp_path, {"flush": "sync"}, send_queue_capacity=3))


def test_runs_that_waited_during_a_stall_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        # All sends from now on count as having waited, however many turns pass.
        peer.loop.lag.stop()
        peer.loop.admission.note_lag(1_500_000_000)
        refused = await send_runs(peer, some_runs("T", {0: 1, 1: 1}))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control")
        assert len(await peer.messages("T")) == 1

    monkeypatch.setattr(Admission, "end_turn", lambda _self: None)
    with_broker(story, settings_of(tmp_path, os_page_cache_busy_ms=1_000))


def test_runs_refused_by_a_full_store_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")

        def full(*_: object) -> None:
            raise StoreError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "write_at", full)
            refused = await send_runs(peer, some_runs("T", {0: 2, 1: 1}))
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the disk is full" in (refused.remark or "")
        assert peer.broker.describe()["messages_in"] == 1
        assert (await send_runs(peer, some_runs("T", {0: 2, 1: 1}))).code == ResponseCode.SUCCESS
        assert [len(await peer.messages("T", queue_id=each)) for each in (0, 1)] == [3, 1]

    with_broker(story, settings_of(tmp_path))


async def puts_of(peer: Peer, topic: str) -> tuple[int, int]:
    """Return the messages and bytes put to a topic, by the broker's statistics."""
    sums = []
    for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
        header = BrokerStatsHeader(name, topic)
        response = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, header.to_ext())
        is_known = response.code == ResponseCode.SUCCESS
        sums.append(BrokerStatsData.decode(response.body).minute.sum if is_known else 0)
    return sums[0], sums[1]


def test_runs_are_counted_for_their_topic_and_the_broker(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        records = [some_records("T", 0, 3), some_records("T", 2, 200), some_records("U", 0, 5)]
        await send_runs(peer, some_runs("T", {0: 3, 2: 200}))
        await send_runs(peer, some_runs("U", {0: 5, 1: 1}), "U")
        assert await puts_of(peer, "T") == (203, len(records[0]) + len(records[1]))
        assert (await puts_of(peer, "U"))[0] == 6
        refused = await send_runs(peer, some_runs("T", {0: 1, 1: 2})[:-1])
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        await send_runs(peer, some_runs("T", {0: 3}))
        assert await puts_of(peer, "T") == (206, 2 * len(records[0]) + len(records[1]))
        table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert table["msgPutTotalTodayNow"] == "212"
        assert float(table["putTps"].split()[0]) > 0

    with_broker(story, settings_of(tmp_path))

"""Admission: limits of waiting sends, pending requests and unread responses; a stalled event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.broker.core.admission import Admission
from actors.transport.request import Cost
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock, SystemClock
from store.message_store import MessageStore
from tests.actors.broker.brokers import HOLD_MS, Peer, hang_disk, settings_of, with_broker
from tests.eventually import eventually_async


def request_of(cost: Cost, pending: int = 0, unread_bytes: int = 0) -> Any:
    hub = SimpleNamespace(unread_bytes=unread_bytes)
    connection = SimpleNamespace(pending=pending, hub=hub)
    return SimpleNamespace(connection=connection, row=SimpleNamespace(cost=cost))


def admission_of(tmp_path: Path, waiting: int = 0, clock: Clock | None = None, **settings: Any) -> Admission:
    positions = SimpleNamespace(waiting=waiting, written=5_000, confirmed=1_000)
    store = cast("MessageStore", SimpleNamespace(positions=positions))
    return Admission(settings_of(tmp_path, **settings), store, clock or SystemClock())


def refusal(admission: Admission, request: Any) -> str:
    with pytest.raises(Refused) as refused:
        admission(request)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    return refused.value.remark


def test_sends_are_refused_while_too_many_wait_for_the_disk(tmp_path: Path, clock) -> None:
    admission = admission_of(tmp_path, waiting=3, clock=clock, send_queue_capacity=3)
    admission(request_of(Cost.SEND))  # sends of the current turn do not count
    admission.end_turn()
    clock.advance(250)
    admission.end_turn()  # the oldest send still waits
    clock.advance(50)
    assert refusal(admission, request_of(Cost.SEND)) == (
        "[OVERLOAD]system busy, start flow control for a while: 3 sends wait for the disk "
        "(send_queue_capacity 3), which is 4,000 bytes behind, period in queue: 300ms"
    )
    admission(request_of(Cost.PULL))
    assert admission.refused == 1


def test_sends_above_the_rate_limit_are_refused_until_time_has_passed(tmp_path: Path, clock) -> None:
    admission = admission_of(tmp_path, clock=clock, max_sends_per_s=100)
    clock.advance(1_000)
    for _ in range(10):  # those of 100 ms may arrive at once
        admission(request_of(Cost.SEND))
    assert "(max_sends_per_s 100): send less, add brokers" in refusal(admission, request_of(Cost.SEND))
    admission(request_of(Cost.PULL))
    clock.advance(10)
    admission(request_of(Cost.SEND))
    refusal(admission, request_of(Cost.SEND))


def test_requests_beyond_max_pending_requests_are_refused(tmp_path: Path) -> None:
    admission = admission_of(tmp_path, max_pending_requests=10)
    admission(request_of(Cost.HEARTBEAT, pending=9))
    assert "10 requests of this connection have no response yet (max_pending_requests 10)" in refusal(
        admission, request_of(Cost.HEARTBEAT, pending=10)
    )


def test_pulls_are_refused_while_responses_are_unread(tmp_path: Path) -> None:
    admission = admission_of(tmp_path, max_unread_bytes=100)
    admission(request_of(Cost.PULL, unread_bytes=100))
    admission(request_of(Cost.SEND, unread_bytes=101))
    assert "101 bytes of responses wait for clients that do not read them (max_unread_bytes 100)" in refusal(
        admission, request_of(Cost.PULL, unread_bytes=101)
    )


def test_sends_that_waited_during_a_stall_are_refused_once(tmp_path: Path) -> None:
    admission = admission_of(tmp_path, waiting=7, os_page_cache_busy_ms=1_000)
    admission.note_lag(999_000_000)
    admission(request_of(Cost.SEND))
    admission.end_turn()
    admission.note_lag(1_500_000_000)
    assert refusal(admission, request_of(Cost.SEND)).startswith(
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 1500ms, size of queue: 7: the broker stalled (os_page_cache_busy_ms 1000)"
    )
    admission(request_of(Cost.HEARTBEAT))
    admission.end_turn()
    admission(request_of(Cost.SEND))


def test_hanging_disk_refuses_further_sends_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        disk_resumes = hang_disk(monkeypatch)
        waiting = [asyncio.create_task(peer.send("T", b"%d" % number)) for number in range(5)]
        await eventually_async(lambda: peer.store.positions.waiting == 5)
        await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)  # a turn has ended since
        refused = await peer.send("T", b"late")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "5 sends wait for the disk (send_queue_capacity 5)" in (refused.remark or "")
        disk_resumes.set()
        assert [(await task).code for task in waiting] == [ResponseCode.SUCCESS] * 5
        assert (await peer.send("T", b"again")).code == ResponseCode.SUCCESS
        assert len(await peer.messages("T")) == 7
        assert peer.broker.describe()["requests_refused"] == 1

    with_broker(story, settings_of(tmp_path, {"flush": "sync"}, send_queue_capacity=5))


def test_requests_are_pending_until_their_response(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        held = [asyncio.create_task(peer.pull("T", 1, wait_ms=HOLD_MS)) for _ in range(3)]
        await peer.until_held(3)
        (connection,) = peer.loop.server.connections
        assert connection.pending == 3
        refused = await peer.pull("T", 1, wait_ms=HOLD_MS)
        assert "(max_pending_requests 3)" in (refused.remark or "")
        # A send on this connection would be refused too, so the held pulls cannot be resumed by one.
        for task in held:
            task.cancel()

    with_broker(story, settings_of(tmp_path, max_pending_requests=3))

"""Timer, transactions and delay levels stop and start again on one broker, as a change of role does it.

Meanwhile the log grows, or loses its unconfirmed end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from actors.broker.core.role import Role
from actors.broker.features.delay.unconfirmed_deliveries import Delivery, UnconfirmedDeliveries
from actors.broker.features.timer.timer_counts import TimerCounts
from actors.broker.features.timer.timer_saving import TimerSaving
from actors.broker.features.transactions.op_messages import OpWriter
from actors.broker.features.transactions.transaction_log import TransactionLog
from actors.wire.codes import ResponseCode
from store.commitlog.positions import Positions
from store.message.message import MessageExt
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings
from store.timer.timer_files import TimerFiles, TimerProgress
from tests.actors.broker.brokers import SMALL_STORE, Peer, run_now, with_broker
from tests.actors.broker.features.timer.timers import (
    START_MS,
    bodies,
    pending,
    rounds,
    send_at,
    timer_settings,
)
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    HALF,
    OP,
    ROLLBACK,
    begin,
    end,
    every,
    settled,
)
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

LEVEL_1_MS = 1_000
INTERVAL_MS = 86_400_000


class HeldBack:
    """Confirms what is written, unless it is held back."""

    def __init__(self) -> None:
        self.is_held = False
        self._confirmed = 0

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        if not self.is_held:
            self._confirmed = positions.written
        return self._confirmed


async def become(peer: Peer, role: Role) -> None:
    await peer.role.become(role, peer.store.writer_epoch)


async def restart_services(peer: Peer, while_stopped: Callable[[], None] = lambda: None) -> None:
    await become(peer, Role.STOPPED)
    while_stopped()
    await become(peer, Role.MASTER)


def with_policy(
    story: Callable[[Peer, HeldBack], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    clock: ClockAtRest,
) -> None:
    """Run a scenario with a broker whose confirmation can be held back."""
    policy = HeldBack()
    monkeypatch.setattr("actors.broker.replication.build.confirm_policy", lambda *_: policy)
    settings = timer_settings(root, {"flush": "async"}, transaction_check_interval_ms=INTERVAL_MS)
    with_broker(lambda peer: story(peer, policy), settings, clock)


async def lose_unconfirmed(peer: Peer, policy: HeldBack) -> None:
    """Stop the services, truncate the log to its confirmed end, and start them again."""
    store = peer.store

    def truncate() -> None:
        store.truncate_to(store.positions.confirmed)
        policy.is_held = False

    await restart_services(peer, truncate)


async def until_written(peer: Peer, more_than: int) -> None:
    positions = peer.store.positions
    await eventually_async(lambda: positions.written > more_than)


def test_timers_are_delivered_once_over_a_stop_and_start(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        for number in range(4):
            await send_at(peer, START_MS + 200 * (number + 1), b"%d" % number)
        clock.advance(450)
        await rounds(peer)
        assert await bodies(peer) == [b"0", b"1"]
        await become(peer, Role.STOPPED)
        await send_at(peer, START_MS + 500, b"while stopped")
        clock.advance(1_000)
        assert await bodies(peer) == [b"0", b"1"]
        for _ in range(2):
            await become(peer, Role.MASTER)
            await rounds(peer)
            assert sorted(await bodies(peer)) == [b"0", b"1", b"2", b"3", b"while stopped"]
            assert pending(peer) == 0
            await become(peer, Role.STOPPED)

    with_broker(story, timer_settings(tmp_path), clock)


def test_timer_delivers_again_what_the_log_has_lost(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer, policy: HeldBack) -> None:
        for number in range(3):
            await send_at(peer, START_MS + 500 + 1_000 * number, b"%d" % number)
        await settled(peer)
        clock.advance(500)
        await rounds(peer)
        policy.is_held = True
        store = peer.store
        written = store.positions.written
        clock.advance(1_600)  # to the next second, so that the delivered one is finished
        await until_written(peer, written)
        for _ in range(3):
            store.flush_now()
            await run_now(peer.broker, "timer-progress")
        await lose_unconfirmed(peer, policy)
        await rounds(peer)
        assert sorted(set(await bodies(peer))) == [b"0", b"1"]
        clock.advance(400)
        await rounds(peer)
        assert sorted(set(await bodies(peer))) == [b"0", b"1", b"2"]
        assert pending(peer) == 0

    with_policy(story, monkeypatch, tmp_path, clock)


def test_timer_does_not_save_the_progress_that_it_had_before_a_stop(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        store = peer.store
        files = TimerFiles(tmp_path, 1 << 16)
        second = files.recover(START_MS, store.positions.written).read_second
        files.allocate()
        saving = TimerSaving(files, store, TimerCounts(tmp_path, clock), clock)
        await saving.save(TimerProgress(7, second), second)
        saving.forget()
        store.flush_now()
        await saving.save(TimerProgress(3, second), second)
        assert files.checkpoint.queue_offset == 0
        store.flush_now()
        await saving.save(TimerProgress(3, second), second)
        assert files.checkpoint.queue_offset == 3
        files.close()

    with_broker(story, timer_settings(tmp_path), clock)


def test_delay_levels_deliver_again_what_the_log_has_lost(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer, policy: HeldBack) -> None:
        await peer.send("T", b"0", properties="DELAY\x011\x02")
        clock.advance(LEVEL_1_MS)
        await settled(peer)
        await run_now(peer.broker, "delayed-delivery")
        assert await bodies(peer) == [b"0"]
        for number in (1, 2):
            await peer.send("T", b"%d" % number, properties="DELAY\x011\x02")
        await settled(peer)
        policy.is_held = True
        written = peer.store.positions.written
        clock.advance(LEVEL_1_MS)
        await run_now(peer.broker, "delayed-delivery")
        await until_written(peer, written)
        await lose_unconfirmed(peer, policy)
        await run_now(peer.broker, "delayed-delivery")
        await settled(peer)
        assert await bodies(peer) == [b"0", b"1", b"2"]

    with_policy(story, monkeypatch, tmp_path, clock)


def test_confirmed_deliveries_are_not_lost(tmp_path: Path, clock: ClockAtRest) -> None:
    deliveries = UnconfirmedDeliveries()
    settings = StoreSettings.model_validate({**SMALL_STORE, "flush": "async"})
    store = MessageStore.open(tmp_path, settings, StoreIdentity("C", "a", 0), clock, sinks=[deliveries])
    for offset in (5, 6, 7):
        result = store.append(RecordDraft("T", 0, b"x", b""))
        deliveries.add(Delivery(result.physical_offset + result.size_bytes, 2, offset))
        if offset == 5:
            store.advance()
    deliveries.rewind(0)
    assert deliveries.take_lost() == {2: 6}
    assert deliveries.take_lost() == {}
    store.close()


def test_delayed_messages_are_delivered_once_over_a_stop_and_start(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"0", properties="DELAY\x011\x02")
        clock.advance(LEVEL_1_MS)
        await settled(peer)
        await run_now(peer.broker, "delayed-delivery")
        await become(peer, Role.STOPPED)
        await peer.send("T", b"while stopped", properties="DELAY\x011\x02")
        await settled(peer)
        clock.advance(LEVEL_1_MS)
        await become(peer, Role.MASTER)
        for _ in range(2):
            await run_now(peer.broker, "delayed-delivery")
            await settled(peer)
        assert await bodies(peer) == [b"0", b"while stopped"]

    with_broker(story, timer_settings(tmp_path), clock)


async def save_progress(peer: Peer, times: int = 3) -> None:
    for _ in range(times):
        peer.store.flush_now()
        await run_now(peer.broker, "transaction-progress")


def test_transaction_is_open_again_if_the_log_has_lost_its_end(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer, policy: HeldBack) -> None:
        half = await begin(peer, b"0")
        await end(peer, await begin(peer, b"1"), COMMIT)
        await settled(peer)
        await run_now(peer.broker, "transaction-progress")
        policy.is_held = True
        rollback = asyncio.create_task(end(peer, half, ROLLBACK))
        await eventually_async(lambda: peer.broker.describe()["open_transactions"] == 0)
        await save_progress(peer)
        await lose_unconfirmed(peer, policy)
        assert (await rollback).code == ResponseCode.SYSTEM_ERROR
        assert peer.broker.describe()["open_transactions"] == 1
        await peer.send("Other", bytes(10_000))  # the log grows over its former end
        await save_progress(peer, 1)  # the second time would save the present progress
        assert (peer.tables.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) or 0) == 0
        assert (await end(peer, half, COMMIT)).code == 0
        assert await bodies(peer) == [b"1", b"0"]

    with_policy(story, monkeypatch, tmp_path, clock)


def test_transactions_that_arrive_while_stopped_are_known_after_the_start(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        first = await begin(peer, b"0")
        await become(peer, Role.STOPPED)
        second = await begin(peer, b"1")
        await settled(peer)
        await become(peer, Role.MASTER)
        assert peer.broker.describe()["open_transactions"] == 2
        assert [(await end(peer, each, COMMIT)).code for each in (second, first)] == [0, 0]
        assert await bodies(peer) == [b"1", b"0"]
        await restart_services(peer)
        assert peer.broker.describe()["open_transactions"] == 0

    with_broker(story, timer_settings(tmp_path, transaction_check_interval_ms=INTERVAL_MS), clock)


def test_requests_wait_while_the_transactions_are_loaded_again(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_loaded: list[bool] = []
    open_halves = TransactionLog.open_halves

    def note(log: TransactionLog, to: int) -> AsyncGenerator[MessageExt, None]:
        is_loaded.append(log.is_loaded)
        return open_halves(log, to)

    async def story(peer: Peer) -> None:
        half = await begin(peer, b"0")
        await settled(peer)
        monkeypatch.setattr(TransactionLog, "open_halves", note)
        await restart_services(peer)
        assert is_loaded == [False]
        assert (await end(peer, half, COMMIT)).code == 0

    with_broker(story, timer_settings(tmp_path, transaction_check_interval_ms=INTERVAL_MS), clock)


def test_op_messages_of_the_former_log_are_not_written_after_a_start(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    """Their offsets may be those of other half messages by now."""

    async def story(peer: Peer) -> None:
        loop = peer.loop
        ops = OpWriter(loop.store, loop.acks, clock, bytes(8), loop.server.request_tick)
        ops.add(0)
        ops.restart(0)
        ops.write()
        await settled(peer)
        assert await every(peer, OP) == []

    with_broker(story, timer_settings(tmp_path), clock)

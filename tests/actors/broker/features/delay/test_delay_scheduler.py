"""Delayed messages: time of delivery, stored content, restarts, and messages that cannot be delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.broker.features.delay.delay_scheduler import DelayScheduler, DelayTimer, LoadPages
from actors.broker.features.delay.unconfirmed_deliveries import UnconfirmedDeliveries
from actors.wire.codes import RequestCode
from store.common.clock import Clock
from store.disk.disk_use import DiskUse
from store.disk.residency import NotResident
from store.message.message import MessageExt
from store.message.record import RecordDraft, decode_record
from store.metadata import DelayOffsetTable
from tests.actors.broker.brokers import HOLD_MS, Peer, run_now, settings_of, with_broker
from tests.eventually import eventually_async

LEVEL_2_MS = 5_000
MS = 1_000_000


def test_delayed_message_is_delivered_after_the_delay_of_its_level(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send(
            "T", b"late", 1, "DELAY\x012\x02TAGS\x01t\x02", born_timestamp=77, reconsume_times=3, flag=9
        )
        assert (sent.code, sent.ext["queueId"]) == (0, "1")
        (waiting,) = await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "1")
        await peer.send("T", b"sooner", 0, "DELAY\x011\x02")
        clock.advance(LEVEL_2_MS - 1)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"sooner"
        assert await peer.messages("T", queue_id=1) == []
        clock.advance(1)
        response = await peer.pull("T", queue_id=1, wait_ms=HOLD_MS, tags="t")
        message = decode_record(response.body)
        assert (message.body, message.flag, message.reconsume_times) == (b"late", 9, 3)
        assert message.properties == waiting.properties
        assert message.born_timestamp == waiting.born_timestamp == 77

    with_broker(story, settings_of(tmp_path), clock)


def test_level_above_the_highest_is_reduced_and_level_0_is_no_delay(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="DELAY\x0199\x02")
        (waiting,) = await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=17)
        assert waiting.properties["DELAY"] == "18"
        await peer.send("T", b"now", properties="DELAY\x010\x02")
        assert [message.body for message in await peer.messages("T")] == [b"now"]

    with_broker(story, settings_of(tmp_path), clock)


@pytest.fixture
def manual_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the broker's delivery, so that the test delivers with its own `DelayScheduler`."""
    monkeypatch.setattr("actors.broker.features.delay.build.DELIVERY_INTERVAL_MS", 1_000_000_000)


def delays_of(peer: Peer, clock: Clock, load_pages: LoadPages | None = None) -> DelayScheduler:
    """Return a scheduler for the broker's store; without `load_pages` its reads may wait for the disk."""
    graph = peer.broker.graph
    table, topics = DelayOffsetTable(clock), graph.tables.topics
    return DelayScheduler(graph.loop.store, clock, table, topics, UnconfirmedDeliveries(), load_pages)


@pytest.mark.usefixtures("manual_delivery")
def test_messages_of_custom_levels_are_delivered_when_due(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        delays = delays_of(peer, clock)
        for level in (1, 2, 3, 4):
            await peer.send("T", b"%d" % level, properties=f"DELAY\x01{level}\x02")
        levels = [message.properties["DELAY"] for message in await peer.messages("SCHEDULE_TOPIC_XXXX", 0, 2)]
        assert levels == ["3", "3"]
        for level, due in ((1, [b"1"]), (2, [b"1", b"2"]), (3, [b"1", b"2", b"3", b"4"])):
            clock.advance(999)
            delays.deliver()
            assert len(await peer.messages("T")) == level - 1
            clock.advance(1)
            delays.deliver()
            assert [message.body for message in await peer.messages("T")] == due

    with_broker(story, settings_of(tmp_path, {"message_delay_level": "1s 2s 3s", "flush": "async"}), clock)


@pytest.mark.usefixtures("manual_delivery")
def test_level_is_delivered_in_slices_and_skips_an_undeliverable_message(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        broker = peer.broker
        for number in range(70):  # one slice has 64
            await peer.send("T", b"%d" % number, properties="DELAY\x011\x02")
        lost = RecordDraft("SCHEDULE_TOPIC_XXXX", 0, b"lost", b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02")
        broker.graph.loop.store.append(lost)
        clock.advance(500)
        await peer.send("T", b"last", properties="DELAY\x011\x02")
        await broker.graph.loop.reads.caught_up()
        delays = delays_of(peer, clock)
        clock.advance(500)
        delays.deliver()
        assert (delays.skipped, delays.table.offsets[1]) == (0, 64)
        delays.deliver()
        assert (delays.skipped, delays.table.offsets[1]) == (1, 71)
        clock.advance(499)
        delays.deliver()
        assert delays.table.offsets[1] == 71
        clock.advance(1)
        delays.deliver()
        assert (delays.skipped, delays.table.offsets[1]) == (1, 72)
        bodies = [message.body async for message in all_of(peer)]
        assert bodies == [*(b"%d" % number for number in range(70)), b"last"]

    async def all_of(peer: Peer) -> AsyncIterator[MessageExt]:
        offset = 0
        while found := await peer.messages("T", offset):
            for message in found:
                yield message
            offset += len(found)

    with_broker(story, settings_of(tmp_path, {"flush": "async"}), clock)


@pytest.mark.usefixtures("manual_delivery")
@pytest.mark.parametrize("jump_ms", [1_100, 3_600_000])
def test_wall_clock_jump_delivers_no_message_early(jump_ms: int, tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        delays = delays_of(peer, clock)
        await peer.send("T", b"before", properties="DELAY\x012\x02")
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)) == 1
        delays.deliver()
        clock.set_wall_ms(clock.wall_ms() + jump_ms)
        delays.deliver()
        await peer.send("T", b"after", properties="DELAY\x012\x02")
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)) == 2
        delays.deliver()
        clock.advance(LEVEL_2_MS - 1)
        delays.deliver()
        assert delays.table.offsets == {}
        clock.advance(1)
        delays.deliver()
        assert (delays.skipped, delays.table.offsets) == (0, {2: 2})

    with_broker(story, settings_of(tmp_path), clock)


@pytest.mark.usefixtures("manual_delivery")
def test_pages_of_a_cold_level_are_loaded_once_before_delivery(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_cold(*_: Any) -> None:
        raise NotResident([])

    async def story(peer: Peer) -> None:
        store = peer.store
        loads: list[Callable[[], None]] = []
        delays = delays_of(peer, clock, lambda _, done: loads.append(done))
        for level in (1, 1, 2):
            await peer.send("T", b"1", properties=f"DELAY\x01{level}\x02")
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX")) == 2
        clock.advance(LEVEL_2_MS)
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(store, "get_message", is_cold)
                delays.deliver()
                delays.deliver()
            assert len(loads) == 2  # once per level, although `deliver` was called several times
            delays.deliver()
            assert delays.table.offsets == {}  # the pages are still being loaded
            loads.pop()()
            loads.pop()()
        delays.deliver()
        assert (delays.skipped, delays.table.offsets) == (0, {1: 2, 2: 1})

    with_broker(story, settings_of(tmp_path, {"flush": "async"}), clock)


def test_restart_delivers_pending_messages_once(tmp_path: Path, clock) -> None:
    async def before(peer: Peer) -> None:
        for body in (b"0", b"1"):
            await peer.send("T", body, properties="DELAY\x011\x02")
            clock.advance(600)
        clock.advance(-200)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"0"

    async def after(peer: Peer) -> None:
        clock.advance(2_000)
        assert decode_record((await peer.pull("T", 1, wait_ms=HOLD_MS)).body).body == b"1"

    with_broker(before, settings_of(tmp_path), clock)
    with_broker(after, settings_of(tmp_path), clock)


def test_clock_set_back_does_not_extend_the_delay(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        clock.set_wall_ms(clock.wall_ms() - 3_600_000)
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX")) == 1
        await run_now(peer.broker, "delayed-delivery")
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"late"

    with_broker(story, settings_of(tmp_path), clock)


def test_delay_timer_counts_from_the_last_observation_of_growth() -> None:
    """Observations in quick succession are merged into one with the later time: none is counted too early."""
    timer = DelayTimer(1_000)
    timer.observe(1, 0)
    timer.observe(2, 40 * MS)
    assert not timer.has_elapsed(1, 1_000 * MS)
    assert timer.has_elapsed(1, 1_040 * MS)
    assert not timer.has_elapsed(2, 1_040 * MS), "this message was not observed yet"


def test_message_over_a_lowered_size_limit_is_skipped(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        for level, body in ((1, b"before"), (1, b"x" * 200_000), (1, b"after"), (2, b"other level")):
            assert (await peer.send("T", body, level, f"DELAY\x01{level}\x02")).code == 0
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000")).code == 0
        clock.advance(LEVEL_2_MS)
        other = await peer.pull("T", 0, 2, wait_ms=HOLD_MS)
        assert decode_record(other.body).body == b"other level"
        after = await peer.pull("T", 1, 1, wait_ms=HOLD_MS)
        assert decode_record(after.body).body == b"after"
        assert [message.body for message in await peer.messages("T", 0, 1)] == [b"before", b"after"]
        assert await peer.send("T", b"later", 1, "DELAY\x011\x02")
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", 2, 1, wait_ms=HOLD_MS)).body).body == b"later"
        described = peer.broker.describe()
        assert (described["delayed_messages_skipped"], described["background_task_failures"]) == (1, 0)

    with structlog.testing.capture_logs() as logs:
        with_broker(story, settings_of(tmp_path), clock)
    (line,) = [line for line in logs if line["event"] == "delayed_message_skipped"]
    assert (line["level"], line["offset"], line["topic"]) == (1, 1, "T")
    assert "exceeds max_message_bytes 1,000" in line["error"]


def test_message_too_large_for_a_log_file_is_skipped(tmp_path: Path, clock) -> None:
    """The record grows at delivery, because the name of its own topic is longer than SCHEDULE_TOPIC_XXXX."""
    topic, file_bytes = "T" * 100, 1 << 16

    async def story(peer: Peer) -> None:
        await peer.send(topic, b"1", properties="DELAY\x011\x02")
        (small,) = await peer.messages("SCHEDULE_TOPIC_XXXX")
        largest = bytes(file_bytes - small.store_size - 7)
        assert (await peer.send(topic, largest, properties="DELAY\x011\x02")).code == 0
        assert (await peer.send(topic, b"2", properties="DELAY\x011\x02")).code == 0
        clock.advance(1_000)
        for offset, body in enumerate((b"1", b"2")):
            assert decode_record((await peer.pull(topic, offset, wait_ms=HOLD_MS)).body).body == body
        assert peer.broker.describe()["delayed_messages_skipped"] == 1

    with_broker(story, settings_of(tmp_path, {"commit_log_file_bytes": file_bytes}), clock)


def test_full_disk_delays_messages_until_there_is_space(tmp_path: Path, clock) -> None:
    used_percent = 10

    def probe(_: Path) -> DiskUse:
        return DiskUse(used_percent * 10, 1000 - used_percent * 10)

    async def story(peer: Peer) -> None:
        nonlocal used_percent

        def is_refused(*, expected: bool) -> bool:
            clock.advance(1_000)
            return bool(peer.broker.describe()["write_refusal"]) is expected

        await peer.send("T", b"late", properties="DELAY\x0118\x02")
        used_percent = 95
        await eventually_async(lambda: is_refused(expected=True))
        clock.advance(2 * 3_600_000)
        await eventually_async(lambda: "delayed_delivery_failed" in {line["event"] for line in logs})
        assert await peer.messages("T") == []
        used_percent = 10
        await eventually_async(lambda: is_refused(expected=False))
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"late"
        assert peer.broker.describe()["delayed_messages_skipped"] == 0

    with structlog.testing.capture_logs() as logs:
        with_broker(story, settings_of(tmp_path), clock, probe)


@pytest.mark.parametrize("digits", [11, 5_000])  # more than 32 bits; more digits than `int` accepts
def test_message_with_an_impossible_queue_id_is_skipped(digits: int, tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        real = b"REAL_TOPIC\x01T\x02REAL_QID\x01%b\x02" % (b"9" * digits)  # possible in an adopted store
        peer.store.append(RecordDraft("SCHEDULE_TOPIC_XXXX", 0, b"lost", real))
        await peer.send("T", b"after", properties="DELAY\x011\x02")
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"after"
        assert peer.broker.describe()["delayed_messages_skipped"] == 1

    with_broker(story, settings_of(tmp_path), clock)


@pytest.mark.parametrize("topic", ["a/b", "..", "T" * 200, "a b"])
def test_message_with_an_invalid_real_topic_is_skipped(topic: str, tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        real = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02".encode()  # possible in an adopted store
        peer.store.append(RecordDraft("SCHEDULE_TOPIC_XXXX", 0, b"lost", real))
        await peer.send("T", b"after", properties="DELAY\x011\x02")
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"after"
        assert peer.broker.describe()["delayed_messages_skipped"] == 1

    with_broker(story, settings_of(tmp_path), clock)


def test_skipped_message_stays_skipped_after_a_restart(tmp_path: Path, clock) -> None:
    def skipped(peer: Peer) -> object:
        return peer.broker.describe()["delayed_messages_skipped"]

    async def before(peer: Peer) -> None:
        await peer.send("T", b"x" * 200_000, properties="DELAY\x011\x02")
        await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000")
        clock.advance(1_000)
        await eventually_async(lambda: skipped(peer) == 1)

    async def after(peer: Peer) -> None:
        await peer.send("T", b"after", properties="DELAY\x011\x02")
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"after"
        assert skipped(peer) == 0

    settings = settings_of(tmp_path)
    with_broker(before, settings, clock)
    with_broker(after, settings, clock)


def test_scheduler_knows_when_the_next_message_is_due(tmp_path: Path, clock, manual_delivery: None) -> None:
    async def story(peer: Peer) -> None:
        delays = delays_of(peer, clock)
        assert delays.left_ms() is None
        await peer.send("T", properties="DELAY\x013\x02")
        await peer.send("T", properties="DELAY\x012\x02")
        await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)  # dispatches them
        assert delays.left_ms() == 0  # not read yet
        clock.advance(1_000)
        delays.deliver()
        assert delays.left_ms() == LEVEL_2_MS - 1_000
        clock.advance(LEVEL_2_MS - 1_000)
        delays.deliver()
        assert delays.left_ms() == LEVEL_2_MS  # of level 3, 10 s

    with_broker(story, settings_of(tmp_path), clock)

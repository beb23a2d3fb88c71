"""Delayed messages: when they come, what they are then, and that a restart forgets none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.broker.sending.delays import Bring, Delays, Waiting
from actors.remoting.codes import RequestCode
from store.clock import Clock
from store.disk.disk_use import DiskUse
from store.disk.residency import NotResident
from store.message.message import MessageExt
from store.message.record import RecordDraft, decode_record
from store.metadata import DelayOffsetTable
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.eventually import eventually_async

LEVEL_2_MS = 5_000
MS = 1_000_000


def test_a_delayed_message_comes_when_its_level_says(tmp_path: Path, clock) -> None:
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
        answer = await peer.pull("T", queue_id=1, wait_ms=HOLD_MS, tags="t")
        message = decode_record(answer.body)
        assert (message.body, message.flag, message.reconsume_times) == (b"late", 9, 3)
        assert message.properties == waiting.properties
        assert message.born_timestamp == waiting.born_timestamp == 77

    with_broker(story, settings_of(tmp_path), clock)


def test_levels_too_high_are_the_highest_and_none_is_none(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="DELAY\x0199\x02")
        (waiting,) = await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=17)
        assert waiting.properties["DELAY"] == "18"
        await peer.send("T", b"now", properties="DELAY\x010\x02")
        assert [message.body for message in await peer.messages("T")] == [b"now"]

    with_broker(story, settings_of(tmp_path), clock)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker deliver nothing, so that the test's own `Delays` do."""
    monkeypatch.setattr("actors.broker.build.DELIVERY_INTERVAL_MS", 1_000_000_000)


def delays_of(peer: Peer, clock: Clock, bring: Bring | None = None) -> Delays:
    """Return delays on the broker's store; without `bring` they read whatever is in the page cache."""
    return Delays(peer.broker.graph.loop.store, clock, DelayOffsetTable(clock), bring)


@pytest.mark.usefixtures("by_hand")
def test_the_highest_level_is_delivered_and_one_more_is_the_highest(tmp_path: Path, clock) -> None:
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


@pytest.mark.usefixtures("by_hand")
def test_a_level_is_delivered_in_slices_and_goes_on_behind_a_message_that_leads_nowhere(
    tmp_path: Path, clock
) -> None:
    async def story(peer: Peer) -> None:
        broker = peer.broker
        for number in range(70):  # 64 go in one slice
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


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("leap_ms", [1_100, 3_600_000])
def test_a_wall_that_leaps_forward_brings_no_message_before_its_delay(
    leap_ms: int, tmp_path: Path, clock
) -> None:
    async def story(peer: Peer) -> None:
        delays = delays_of(peer, clock)
        await peer.send("T", b"before", properties="DELAY\x012\x02")
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)) == 1
        delays.deliver()
        clock.set_wall_ms(clock.wall_ms() + leap_ms)
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


@pytest.mark.usefixtures("by_hand")
def test_a_level_whose_messages_are_on_the_disk_only_is_asked_for_once_and_then_goes_on(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_cold(*_: Any) -> None:
        raise NotResident([])

    async def story(peer: Peer) -> None:
        store = peer.broker.graph.loop.store
        brought: list[Callable[[], None]] = []
        delays = delays_of(peer, clock, lambda _, done: brought.append(done))
        for level in (1, 1, 2):
            await peer.send("T", b"1", properties=f"DELAY\x01{level}\x02")
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX")) == 2
        clock.advance(LEVEL_2_MS)
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(store, "get_message", is_cold)
                delays.deliver()
                delays.deliver()
            assert len(brought) == 2  # once for each level, however often it is looked at
            delays.deliver()
            assert delays.table.offsets == {}  # it is on its way
            brought.pop()()
            brought.pop()()
        delays.deliver()
        assert (delays.skipped, delays.table.offsets) == (0, {1: 2, 2: 1})

    with_broker(story, settings_of(tmp_path, {"flush": "async"}), clock)


def test_a_restart_delivers_what_was_waiting_and_nothing_twice(tmp_path: Path, clock) -> None:
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


def test_a_clock_set_back_keeps_no_message_for_longer_than_its_delay(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        clock.set_wall_ms(clock.wall_ms() - 3_600_000)
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX")) == 1
        peer.broker.graph.delays.deliver()
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"late"

    with_broker(story, settings_of(tmp_path), clock)


def test_a_level_has_waited_only_since_the_last_look_that_saw_it_grow() -> None:
    """Looks shortly after one another are one note: the earlier may have seen fewer messages."""
    waiting = Waiting(1_000)
    waiting.note(1, 0)
    waiting.note(2, 40 * MS)
    assert not waiting.is_over(1, 1_000 * MS)
    assert waiting.is_over(1, 1_040 * MS)
    assert not waiting.is_over(2, 1_040 * MS), "nobody has seen that one yet"


def test_a_message_over_a_lowered_limit_is_skipped_and_blocks_nothing(tmp_path: Path, clock) -> None:
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
        told = peer.broker.describe()
        assert (told["delayed_messages_skipped"], told["background_task_failures"]) == (1, 0)

    with structlog.testing.capture_logs() as logs:
        with_broker(story, settings_of(tmp_path), clock)
    (line,) = [line for line in logs if line["event"] == "delayed_message_skipped"]
    assert (line["level"], line["offset"], line["topic"]) == (1, 1, "T")
    assert "is over max_message_bytes 1,000" in line["error"]


def test_a_message_that_fits_no_log_file_is_skipped(tmp_path: Path, clock) -> None:
    """Under its own topic, whose name is longer, the record is larger than it was while it waited."""
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


def test_a_full_disk_skips_no_message_and_it_comes_when_there_is_space(tmp_path: Path, clock) -> None:
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


@pytest.mark.parametrize("digits", [11, 5_000])  # beyond 32 bits; more than `int` reads
def test_a_message_for_a_queue_that_cannot_be_is_skipped(digits: int, tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        real = b"REAL_TOPIC\x01T\x02REAL_QID\x01%b\x02" % (b"9" * digits)  # as an adopted store may have it
        peer.broker.graph.loop.store.append(RecordDraft("SCHEDULE_TOPIC_XXXX", 0, b"lost", real))
        await peer.send("T", b"after", properties="DELAY\x011\x02")
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"after"
        assert peer.broker.describe()["delayed_messages_skipped"] == 1

    with_broker(story, settings_of(tmp_path), clock)


def test_a_skipped_message_stays_skipped_over_a_restart(tmp_path: Path, clock) -> None:
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

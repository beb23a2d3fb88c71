"""Delayed messages: when they come, what they are then, and that a restart forgets none."""

from __future__ import annotations

from pathlib import Path

from actors.broker.delays import Waiting
from store.message.record import decode_record
from tests.actors.broker.brokers import Peer, settings_of, with_broker

LEVEL_2_MS = 5_000
MS = 1_000_000


def test_a_delayed_message_comes_when_its_level_says(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send("T", b"late", 1, "DELAY\x012\x02TAGS\x01t\x02", reconsume_times=3, flag=9)
        assert (sent.code, sent.ext["queueId"]) == (0, "1")
        (waiting,) = await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=1)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "1")
        await peer.send("T", b"sooner", 0, "DELAY\x011\x02")
        clock.advance(LEVEL_2_MS - 1)
        assert decode_record((await peer.pull("T", wait_ms=10_000)).body).body == b"sooner"
        assert await peer.messages("T", queue_id=1) == []
        clock.advance(1)
        answer = await peer.pull("T", queue_id=1, wait_ms=10_000, tags="t")
        message = decode_record(answer.body)
        assert (message.body, message.flag, message.reconsume_times) == (b"late", 9, 3)
        assert message.properties == waiting.properties
        assert message.born_timestamp == waiting.born_timestamp

    with_broker(story, settings_of(tmp_path), clock)


def test_levels_too_high_are_the_highest_and_none_is_none(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="DELAY\x0199\x02")
        (waiting,) = await peer.messages("SCHEDULE_TOPIC_XXXX", queue_id=17)
        assert waiting.properties["DELAY"] == "18"
        await peer.send("T", b"now", properties="DELAY\x010\x02")
        assert [message.body for message in await peer.messages("T")] == [b"now"]

    with_broker(story, settings_of(tmp_path), clock)


def test_a_restart_delivers_what_was_waiting_and_nothing_twice(tmp_path: Path, clock) -> None:
    async def before(peer: Peer) -> None:
        for body in (b"0", b"1"):
            await peer.send("T", body, properties="DELAY\x011\x02")
            clock.advance(600)
        clock.advance(-200)
        assert decode_record((await peer.pull("T", wait_ms=10_000)).body).body == b"0"

    async def after(peer: Peer) -> None:
        clock.advance(2_000)
        assert decode_record((await peer.pull("T", 1, wait_ms=10_000)).body).body == b"1"

    with_broker(before, settings_of(tmp_path), clock)
    with_broker(after, settings_of(tmp_path), clock)


def test_a_clock_set_back_keeps_no_message_for_longer_than_its_delay(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        clock.set_wall_ms(clock.wall_ms() - 3_600_000)
        assert len(await peer.messages("SCHEDULE_TOPIC_XXXX")) == 1
        peer.broker._tables.delays.deliver()
        clock.advance(1_000)
        assert decode_record((await peer.pull("T", wait_ms=10_000)).body).body == b"late"

    with_broker(story, settings_of(tmp_path), clock)


def test_a_level_has_waited_only_since_the_last_look_that_saw_it_grow() -> None:
    """Looks shortly after one another are one note: the earlier may have seen fewer messages."""
    waiting = Waiting(1_000)
    waiting.note(1, 0)
    waiting.note(2, 40 * MS)
    assert not waiting.is_over(1, 1_000 * MS)
    assert waiting.is_over(1, 1_040 * MS)
    assert not waiting.is_over(2, 1_040 * MS), "nobody has seen that one yet"

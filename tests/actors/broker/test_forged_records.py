"""Records that no broker has checked are put aside at their delivery: timers, delays and transactions.

An old or foreign store may have them. The services continue, and create neither topics nor queues.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from actors.broker.core.metadata.topics import system_topics
from actors.wire.codes import RequestCode
from store.message.message import MessageExt
from store.message.properties import encode_properties
from store.message.record import RecordDraft
from tests.actors.broker.brokers import HOLD_MS, Peer, with_broker
from tests.actors.broker.features.timer.timers import START_MS, TIMER, bodies, rounds, send_at, timer_settings
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    DISCARDED,
    HALF,
    OP,
    TIMEOUT_MS,
    begin,
    check,
    end,
    end_at,
    every,
    manual,
    place_of,
    settled,
)

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
UNDELIVERED = "rmq_sys_raymq_undelivered"
IMPOSSIBLE = (  # REAL_TOPIC and REAL_QID
    (TIMER, "0"),
    (OP, "0"),
    (HALF, "0"),
    (SCHEDULE, "0"),
    (UNDELIVERED, "0"),
    ("rmq_sys_new", "0"),
    ("TRANS_CHECK_MAX_TIME_TOPIC", "0"),
    ("nosuch", "0"),
    ("nosuch", "999999999"),
    ("T", "999999999"),
    ("T", "-1"),
    ("T", "x"),
    ("T", "9" * 5_000),
    ("", "0"),
    ("a/b", "0"),
    ("..", "0"),
    ("T" * 200, "0"),
    ("%LMQ%x", "0"),
)


def forged(topic: str, properties: dict[str, str], body: bytes = b"forged") -> RecordDraft:
    return RecordDraft(topic, 0, body, encode_properties(properties), born_timestamp=START_MS)


def real(target: tuple[str, str], **more: str) -> dict[str, str]:
    topic, queue_id = target
    return {**({"REAL_TOPIC": topic} if topic else {}), "REAL_QID": queue_id, **more}


def created(peer: Peer) -> set[str]:
    """Return the topics and queues that forged records have created."""
    graph = peer.broker.graph
    known = {topic.topic_name for topic in system_topics(peer.broker.settings)}
    known |= {"T", "TBW102", UNDELIVERED, DISCARDED}
    queues = {f"{topic}:{queue_id}" for topic, queue_id in graph.loop.store.queues() if queue_id > 0}
    return (set(graph.tables.topics.table.topics) - known) | queues


async def kept(peer: Peer, topic: str = UNDELIVERED) -> list[MessageExt]:
    await settled(peer)
    return await every(peer, topic)


def test_impossible_timers_are_put_aside_and_others_delivered(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        store = peer.store
        await send_at(peer, START_MS + 50, b"before")
        for target in IMPOSSIBLE:
            store.append(forged(TIMER, real(target, TIMER_OUT_MS=str(START_MS - 1000))))
        await send_at(peer, START_MS + 60, b"after")
        await rounds(peer)
        clock.advance(100)
        await rounds(peer)
        written = store.positions.written
        clock.advance(5_000)
        await rounds(peer)
        assert await bodies(peer) == [b"before", b"after"]
        assert store.positions.written == written, "nothing is delivered again"
        assert created(peer) == set()
        described = peer.broker.describe()
        assert described["timer_messages_skipped"] == len(IMPOSSIBLE)
        assert described["pending_timers"] == described["background_task_failures"] == 0
        aside = await kept(peer)
        assert [message.body for message in aside] == [b"forged"] * len(IMPOSSIBLE)
        assert "only the broker writes" in aside[0].properties["UNDELIVERED_REASON"]

    with structlog.testing.capture_logs() as logs:
        with_broker(story, timer_settings(tmp_path), clock)
    lines = [line for line in logs if line["event"] == "timer_message_skipped"]
    assert len({line["position"] for line in lines}) == len(IMPOSSIBLE)


def test_forged_timers_are_put_aside_after_a_restart(tmp_path: Path, clock) -> None:
    """A timer that sends to its own topic filled the log with 2 GB in 8 s, also after a restart."""

    async def before(peer: Peer) -> None:
        await send_at(peer, START_MS + 5_000, b"due")
        for target in IMPOSSIBLE:
            out = str(START_MS + 4_000)
            peer.store.append(forged(TIMER, real(target, TIMER_OUT_MS=out)))

    async def after(peer: Peer) -> None:
        clock.advance(5_000)
        await rounds(peer)
        written = peer.store.positions.written
        clock.advance(60_000)
        await rounds(peer)
        assert await bodies(peer) == [b"due"]
        assert peer.store.positions.written == written
        assert created(peer) == set()

    for story in (before, after):
        with_broker(story, timer_settings(tmp_path), clock)


def test_forged_deletion_cancels_no_timer_of_another_topic(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("mine")
        await send_at(peer, START_MS + 500, b"theirs", properties="UNIQ_KEY\x01ID\x02")
        deletion = real(("mine", "0"), TIMER_OUT_MS=str(START_MS), TIMER_DEL_UNIQKEY="T+ID")
        peer.store.append(forged(TIMER, deletion))
        clock.advance(1_000)
        await rounds(peer)
        assert await bodies(peer) == [b"theirs"]
        (aside,) = await kept(peer)
        assert "cannot cancel one of another topic" in aside.properties["UNDELIVERED_REASON"]

    with_broker(story, timer_settings(tmp_path), clock)


@pytest.mark.parametrize(
    "out_ms", ["", "x", "-1", "-9" * 8, "9" * 18, "9" * 5_000, "1e9", "0", str(START_MS)]
)
def test_timer_with_any_time_stops_no_other(tmp_path: Path, clock, out_ms: str) -> None:
    async def story(peer: Peer) -> None:
        more = {"TIMER_OUT_MS": out_ms, "TIMER_ROLL_TIMES": out_ms, "TIMER_DELIVER_MS": out_ms}
        await send_at(peer, START_MS + 50, b"after")
        peer.store.append(forged(TIMER, real(("T", "0"), **more)))
        clock.advance(10_000)
        await rounds(peer)
        await rounds(peer)
        assert b"after" in await bodies(peer)
        assert peer.broker.describe()["background_task_failures"] == 0

    with_broker(story, timer_settings(tmp_path), clock)


def test_impossible_delays_are_put_aside_and_others_delivered(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        store = peer.store
        await peer.send("T", b"before", properties="DELAY\x011\x02")
        for target in IMPOSSIBLE:
            store.append(forged(SCHEDULE, real(target, DELAY="1")))
        await peer.send("T", b"after", properties="DELAY\x011\x02")
        await settled(peer)
        clock.advance(1_000)
        for offset in range(2):
            assert (await peer.pull("T", offset, wait_ms=HOLD_MS)).code == 0
        assert await bodies(peer) == [b"before", b"after"]
        assert len(await kept(peer)) == len(IMPOSSIBLE)
        assert created(peer) == set()
        described = peer.broker.describe()
        assert described["delayed_messages_skipped"] == len(IMPOSSIBLE)
        assert described["background_task_failures"] == 0

    with structlog.testing.capture_logs() as logs:
        with_broker(story, timer_settings(tmp_path), clock)
    lines = [line for line in logs if line["event"] == "delayed_message_skipped"]
    assert len({line["position"] for line in lines}) == len(IMPOSSIBLE)


def test_topic_deleted_during_the_delay_is_not_created_again(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("D", b"level", properties="DELAY\x011\x02")
        await send_at(peer, START_MS + 1_000, b"timer", topic="D")
        await rounds(peer)
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "D"})).code == 0
        clock.advance(2_000)
        await rounds(peer)
        while len(found := await kept(peer)) < 2:
            await rounds(peer)
        assert {message.body for message in found} == {b"level", b"timer"}
        assert all("'D' does not exist" in each.properties["UNDELIVERED_REASON"] for each in found)
        assert "D" not in peer.tables.topics.table.topics

    with_broker(story, timer_settings(tmp_path), clock)


def test_impossible_halves_are_given_up_and_others_committed(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        store = peer.store
        half = await begin(peer)
        impossible = [target for target in IMPOSSIBLE if target[0] not in ("nosuch", "%LMQ%x")]
        appended = [
            store.append(forged(HALF, real(target, PGROUP="PG", TRAN_MSG="true", UNIQ_KEY="U")))
            for target in impossible
        ]
        await settled(peer)
        for number, result in enumerate(appended, 1):
            place = place_of(half)._replace(offset=number, position=result.physical_offset)
            assert (await end_at(peer, place, "U", COMMIT)).code != 0
        clock.advance(TIMEOUT_MS)
        await check(peer)
        assert (await end(peer, half, COMMIT)).code == 0
        assert [message.body for message in await kept(peer, "T")] == [b"half"]
        assert [message.body for message in await kept(peer, DISCARDED)] == [b"forged"] * len(impossible)
        assert created(peer) == set()
        assert peer.broker.describe()["open_transactions"] == 0

    with_broker(story, manual(tmp_path), clock)


def test_forged_op_messages_and_copies_finish_no_other_half(tmp_path: Path, clock) -> None:
    """Op messages name only halves of the queue; a copy replaces only an earlier half."""
    halves = []

    async def before(peer: Peer) -> None:
        store = peer.store
        halves.append(await begin(peer))
        for body in (
            b"",
            b"x",
            b"-1,",
            b"5,6,7,",
            b"9" * 5_000,
            b"0;",
            b",,,",
            b"1e3,",
            b"999999999999999999,",
        ):
            store.append(forged(OP, {"TAGS": "d"}, body))
        store.append(forged(OP, {}, b"0,"))  # without the tag
        more = {"PGROUP": "PG", "TRAN_PREPARED_QUEUE_OFFSET": "99"}
        store.append(forged(HALF, real(("T", "0"), **more)))
        await settled(peer)

    async def after(peer: Peer) -> None:
        assert peer.broker.describe()["open_transactions"] == 2
        assert (await end(peer, halves[0], COMMIT)).code == 0
        assert [message.body for message in await kept(peer, "T")] == [b"half"]

    for story in (before, after):
        with_broker(story, manual(tmp_path), clock)


NAMES = (
    "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES",
    "TIMER_ENQUEUE_MS", "DELAY", "PGROUP", "TRAN_MSG", "UNIQ_KEY", "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TAGS", "KEYS", "MAX_RECONSUME_TIMES",
)  # fmt: skip
VALUES = (
    "",
    "0",
    "1",
    "-1",
    "x",
    "T",
    TIMER,
    HALF,
    OP,
    "9" * 18,
    "-" + "9" * 18,
    "9" * 400,
    "é\x00",
    "\u0663",
    "d",
    "T+U",
)


def random_records(seed: int, count: int) -> Iterator[RecordDraft]:
    rng = random.Random(seed)
    for _ in range(count):
        pairs = [
            f"{rng.choice(NAMES)}\x01{rng.choice(VALUES)}\x02".encode()
            for _ in range(rng.randrange(len(NAMES)))
        ]
        if rng.random() < 0.2:
            pairs.append(rng.randbytes(8))
        yield RecordDraft(
            rng.choice((TIMER, SCHEDULE, HALF, OP)),
            rng.choice((0, 0, 0, 1, 17)),
            rng.choice((b"", b"0,1,", b"x" * 100)),
            b"".join(pairs),
            flag=rng.choice((0, -1)),
            sys_flag=rng.choice((0, 1, 4, 8, 12, 0x7FFFFFFF & ~0x30)),
            born_timestamp=rng.choice((0, -1, START_MS, 2**63 - 1)),
            reconsume_times=rng.choice((0, -1, 2**31 - 1)),
            prepared_transaction_offset=rng.choice((0, -1, 2**62)),
        )


@pytest.mark.parametrize("seed", range(6))
def test_random_records_stop_no_background_service(tmp_path: Path, clock, seed: int) -> None:
    async def append(peer: Peer) -> None:
        await peer.send("T", b"first")
        for record in random_records(seed, 300):
            peer.store.append(record)
        await settled(peer)

    async def serve(peer: Peer) -> None:
        first = len(await bodies(peer))
        half = await begin(peer, b"committed")
        await peer.send("T", b"level", properties="DELAY\x011\x02")
        await send_at(peer, clock.wall_ms() + 500, b"timer")
        await settled(peer)
        for _ in range(3):
            clock.advance(TIMEOUT_MS)
            await rounds(peer)
            await check(peer)
        assert (await end(peer, half, COMMIT)).code == 0
        for offset in range(first, first + 3):
            assert (await peer.pull("T", offset, wait_ms=HOLD_MS)).code == 0
        assert {b"level", b"timer", b"committed"} <= set(await bodies(peer))
        assert peer.broker.describe()["background_task_failures"] == 0

    settings = timer_settings(tmp_path, transaction_check_interval_ms=1_000_000_000)
    for story in (append, serve, serve):
        with_broker(story, settings, clock)

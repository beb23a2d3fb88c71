"""Timer messages are delivered at their millisecond: never before, once, and unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.features.timer import timer_service
from actors.wire.codes import RequestCode, ResponseCode
from store.disk.disk_use import DiskUse
from store.message.record import decode_record
from tests.actors.broker.brokers import HOLD_MS, Peer, with_broker
from tests.actors.broker.features.timer.timers import (
    START_MS,
    TIMER,
    bodies,
    delivered,
    pending,
    rounds,
    send_at,
    timer_settings,
)
from tests.actors.broker.features.transactions.transactions import every
from tests.eventually import eventually_async

A_DAY_S = 86_400


def test_pending_message_is_stored_as_rocketmq_stores_it(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await send_at(
            peer, START_MS + 12_345, queue_id=3, properties="UNIQ_KEY\x01ID\x02TAGS\x01t\x02"
        )
        assert (sent.ext["queueId"], sent.ext["transactionId"]) == ("3", "ID")
        [stored] = await every(peer, TIMER)
        expected = {
            "TIMER_OUT_MS": str(START_MS + 12_000),
            "TIMER_DELIVER_MS": str(START_MS + 12_345),
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
            "UNIQ_KEY": "ID",
            "TAGS": "t",
        }
        assert expected.items() <= stored.properties.items()
        assert await peer.messages("T", queue_id=3) == []
        await rounds(peer)
        assert pending(peer) == 1

    with_broker(story, timer_settings(tmp_path), clock)


@pytest.mark.parametrize("after_ms", [1, 999, 1000, 1001, 2000, 12_345, 60_000])
def test_message_is_delivered_at_its_millisecond_and_not_before(tmp_path: Path, clock, after_ms: int) -> None:
    async def story(peer: Peer) -> None:
        await send_at(peer, START_MS + after_ms, b"1", queue_id=2, flag=9, born_timestamp=77)
        [pending_message] = await every(peer, TIMER)
        clock.advance(after_ms - 1)
        await rounds(peer)
        assert await peer.messages("T", queue_id=2) == []
        clock.advance(1)
        await rounds(peer)
        [message] = await peer.messages("T", queue_id=2)
        assert (message.body, message.flag, message.born_timestamp) == (b"1", 9, 77)
        added = {"TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(START_MS + after_ms)}
        assert message.properties == pending_message.properties | added
        clock.advance(10_000)
        await rounds(peer)
        assert len(await peer.messages("T", queue_id=2)) == 1
        assert pending(peer) == 0

    with_broker(story, timer_settings(tmp_path), clock)


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ("TIMER_DELAY_SEC\x012\x02", 2_000),
        ("TIMER_DELAY_MS\x011234\x02", 1_234),
        (f"TIMER_DELIVER_MS\x01{START_MS + 4_321}\x02", 4_321),
        ("TIMER_DELIVER_MS\x011\x02TIMER_DELAY_MS\x013000\x02TIMER_DELAY_SEC\x011\x02", 1_000),
        ("TIMER_DELAY_MS\x0130\x02DELAY\x010\x02", 30),
    ],
)
def test_each_property_sets_the_time(tmp_path: Path, clock, properties: str, due_ms: int) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.send("T", properties=properties)).code == 0
        clock.advance(due_ms - 1)
        await rounds(peer)
        assert await bodies(peer) == []
        clock.advance(1)
        await rounds(peer)
        assert await bodies(peer) == [b"hello"]

    with_broker(story, timer_settings(tmp_path), clock)


def test_messages_of_many_seconds_are_delivered_in_the_order_of_their_times(tmp_path: Path, clock) -> None:
    times = [(number * 7_919) % 5_000 + 1 for number in range(300)]

    async def story(peer: Peer) -> None:
        for time in times:
            await send_at(peer, START_MS + time, b"%d" % time)
        for _ in range(50):
            clock.advance(100)
            await rounds(peer)
            found = await delivered(peer)
            assert sorted(int(each.body) for each in found) == sorted(
                time for time in times if time <= clock.wall_ms() - START_MS
            )
        assert len(found) == len(times)
        dequeued = [int(each.properties["TIMER_DEQUEUE_MS"]) for each in found]
        assert dequeued == sorted(dequeued)

    with_broker(story, timer_settings(tmp_path, timer_log_file_bytes=4096), clock)


@pytest.mark.parametrize(
    "properties",
    [f"TIMER_DELIVER_MS\x01{START_MS}\x02", "TIMER_DELAY_MS\x010\x02", "TIMER_DELAY_SEC\x01-5\x02"],
)
def test_time_that_has_passed_is_no_delay(tmp_path: Path, clock, properties: str) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send("T", properties=properties)
        assert (sent.code, "recallHandle" in sent.ext) == (0, False)
        [message] = await every(peer, "T")
        assert "REAL_TOPIC" not in message.properties

    with_broker(story, timer_settings(tmp_path), clock)


def test_delay_level_has_precedence_over_a_time(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="TIMER_DELAY_MS\x015000\x02DELAY\x011\x02")
        assert len(await every(peer, "SCHEDULE_TOPIC_XXXX")) == 1
        assert await every(peer, TIMER) == []

    with_broker(story, timer_settings(tmp_path), clock)


def test_delivery_wakes_a_held_pull(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        await send_at(peer, START_MS + 50)
        clock.advance(50)
        assert (await peer.pull("T", wait_ms=HOLD_MS)).code == 0

    with_broker(story, timer_settings(tmp_path), clock)


MAX_MS = 259_200_000
ILLEGAL = f"the delay time should not be bigger than the max delay {MAX_MS}ms"


@pytest.mark.parametrize(
    "properties",
    [
        f"TIMER_DELAY_MS\x01{MAX_MS + 1}\x02",
        f"TIMER_DELAY_SEC\x01{MAX_MS // 1000 + 1}\x02",
        f"TIMER_DELIVER_MS\x01{START_MS + MAX_MS + 1}\x02",
        "TIMER_DELIVER_MS\x01999999999999999999\x02",
        "TIMER_DELAY_MS\x0199999999999999999999999\x02",
        "TIMER_DELAY_MS\x01soon\x02",
        "TIMER_DELAY_SEC\x011.5\x02",
        "TIMER_DELAY_SEC\x01١\x02",
        f"TIMER_DELIVER_MS\x01{START_MS}\x02TIMER_DEL_UNIQKEY\x01T+ID\x02",
    ],
)
def test_bad_time_is_refused_with_rocketmqs_code_and_remark(tmp_path: Path, clock, properties: str) -> None:
    async def story(peer: Peer) -> None:
        refused = await peer.send("T", properties=properties)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert ILLEGAL in (refused.remark or "")
        await send_at(peer, START_MS + MAX_MS)
        await rounds(peer)
        assert pending(peer) == 1

    with_broker(story, timer_settings(tmp_path), clock)


def test_disabled_timer_refuses_timer_messages(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        refused = await peer.send("T", properties="TIMER_DELAY_MS\x01100\x02")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable is false" in (refused.remark or "")
        assert (await peer.send("T", properties="TIMER_DELAY_MS\x01100\x02DELAY\x011\x02")).code == 0

    with_broker(story, timer_settings(tmp_path, timer_wheel_enable=False), clock)


def test_message_of_a_transaction_cannot_have_a_time(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        refused = await peer.send("T", properties="TRAN_MSG\x01true\x02TIMER_DELAY_MS\x01100\x02", sys_flag=4)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "TIMER_" in (refused.remark or "")

    with_broker(story, timer_settings(tmp_path), clock)


def test_client_cannot_set_the_properties_of_the_broker(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await send_at(
            peer, START_MS + 10, properties="REAL_TOPIC\x01X\x02REAL_QID\x017\x02TIMER_ROLL_TIMES\x01x\x02"
        )
        clock.advance(10)
        await rounds(peer)
        [message] = await every(peer, "T")
        assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "0")
        assert "TIMER_ROLL_TIMES" not in message.properties

    with_broker(story, timer_settings(tmp_path), clock)


def test_message_beyond_the_window_is_rolled_until_it_is_due(tmp_path: Path, clock) -> None:
    """A window of 100 s: 250 s are 100 + 100 + 50, 120 s are 50 + 70."""

    async def story(peer: Peer) -> None:
        await send_at(peer, START_MS + 250_500, b"250")
        await send_at(peer, START_MS + 120_001, b"120")
        for elapsed_s in range(1, 251):
            clock.advance(1_000)
            if elapsed_s % 10 == 0:
                await rounds(peer)
                expected = [b"120"] if elapsed_s > 120 else []
                assert await bodies(peer) == expected
        assert pending(peer) == 1
        clock.advance(499)
        await rounds(peer)
        assert pending(peer) == 1
        clock.advance(1)
        await rounds(peer)
        found = await delivered(peer)
        rolls = {each.body: each.properties["TIMER_ROLL_TIMES"] for each in found}
        assert rolls == {b"120": "1", b"250": "2"}
        assert len(await every(peer, TIMER)) == 2 + 3
        assert pending(peer) == 0

    with_broker(story, timer_settings(tmp_path, timer_roll_window_slots=100), clock)


def test_delay_longer_than_the_wheel_is_possible(tmp_path: Path, clock) -> None:
    """The wheel has slots for two weeks, and the window is two days."""
    twenty_days_ms = 20 * 86_400_000

    async def story(peer: Peer) -> None:
        refused = await peer.send("T", properties=f"TIMER_DELAY_MS\x01{twenty_days_ms}\x02")
        assert "not be bigger than the max delay 259200000ms" in (refused.remark or "")
        changed = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"timerMaxDelaySec=2592000")
        assert (changed.code, changed.remark) == (0, None)
        await send_at(peer, START_MS + twenty_days_ms, b"20 days")
        for _ in range(19):
            clock.advance(86_400_000)
            await rounds(peer)
        clock.advance(86_400_000 - 1)
        await rounds(peer)
        assert (await bodies(peer), pending(peer)) == ([], 1)
        clock.advance(1)
        await rounds(peer)
        assert (await bodies(peer), pending(peer)) == ([b"20 days"], 0)

    with_broker(story, timer_settings(tmp_path), clock)


def test_clock_that_is_set_back_delays_no_new_message(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await rounds(peer)
        clock.set_wall_ms(START_MS - 3_600_000)
        await send_at(peer, START_MS - 3_600_000 + 2_500)
        clock.advance(2_499)
        await rounds(peer)
        assert await bodies(peer) == []
        clock.advance(1)
        await rounds(peer)
        assert await bodies(peer) == [b"timer"]

    with_broker(story, timer_settings(tmp_path), clock)


def test_message_that_cannot_be_delivered_is_skipped(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await send_at(peer, START_MS + 10, b"x" * 200_000)
        await send_at(peer, START_MS + 20, b"later")
        await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000")
        clock.advance(20)
        await rounds(peer)
        assert await bodies(peer) == [b"later"]
        described = peer.broker.describe()
        assert (described["timer_messages_skipped"], described["background_task_failures"]) == (1, 0)
        assert pending(peer) == 0

    with_broker(story, timer_settings(tmp_path), clock)


def test_full_disk_postpones_the_delivery(tmp_path: Path, clock) -> None:
    used_percent = 10

    def probe(_: Path) -> DiskUse:
        return DiskUse(used_percent * 10, 1000 - used_percent * 10)

    async def story(peer: Peer) -> None:
        nonlocal used_percent

        def is_refused(*, expected: bool) -> bool:
            clock.advance(1_000)
            return bool(peer.broker.describe()["write_refusal"]) is expected

        await send_at(peer, START_MS + 100_000_000)
        await rounds(peer)
        used_percent = 95
        await eventually_async(lambda: is_refused(expected=True))
        clock.set_wall_ms(START_MS + 100_000_000)
        used_percent = 10
        await eventually_async(lambda: is_refused(expected=False))
        await eventually_async(lambda: bodies(peer))
        assert peer.broker.describe()["background_task_failures"] == 0

    with_broker(story, timer_settings(tmp_path), clock, probe)


def test_runtime_info_has_the_timers_progress(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await send_at(peer, START_MS + 5_000)
        await rounds(peer)
        body = bytes((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert b'"timerCongestNum":"1"' in body
        assert b'"timerOffsetBehind":"0"' in body
        assert b'"timerReadBehind":"0"' in body

    with_broker(story, timer_settings(tmp_path), clock)


def test_resting_timer_is_woken_by_a_timer_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_service, "REST_AFTER_ROUNDS", 1)
    monkeypatch.setattr(timer_service, "BEAT_MS", A_DAY_S * 1000)

    async def story(peer: Peer) -> None:
        await peer.send("T", b"due", properties="TIMER_DELAY_MS\x01300\x02")
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"due"

    with_broker(story, timer_settings(tmp_path))

"""A pending timer message is cancelled by its handle, or by TIMER_DEL_UNIQKEY; bad handles are refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from actors.broker.features.timer import timer_service
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from store.message.recall_handle import RecallHandle
from store.store_errors import MessageInvalid
from tests.actors.broker.brokers import A_DAY_MS, Peer, with_broker
from tests.actors.broker.features.timer.timers import (
    START_MS,
    TIMER,
    bodies,
    pending,
    rounds,
    send_at,
    timer_settings,
)
from tests.actors.broker.features.transactions.transactions import CrashImages, every

DUE_MS = START_MS + 5_500


async def recall(peer: Peer, handle: str, topic: str = "T") -> RemotingCommand:
    ext = {"topic": topic, "recallHandle": handle, "producerGroup": "PG"}
    return await peer.ask(RequestCode.RECALL_MESSAGE, ext)


def test_send_returns_a_handle_that_rocketmqs_clients_can_decode(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await send_at(peer, DUE_MS, properties="UNIQ_KEY\x01ID\x02")
        text = base64.urlsafe_b64decode(sent.ext["recallHandle"]).decode()
        assert text == f"v1 T broker-a {DUE_MS} ID"
        unnamed = await send_at(peer, DUE_MS)
        assert RecallHandle.decode(unnamed.ext["recallHandle"]).uniq_key == unnamed.ext["transactionId"]
        assert "recallHandle" not in (await peer.send("T")).ext

    with_broker(story, timer_settings(tmp_path), clock)


@pytest.mark.parametrize("waited_ms", [0, 4_999, 5_000, 5_001, 5_499])
def test_recalled_message_is_never_delivered(tmp_path: Path, clock, waited_ms: int) -> None:
    """Also if its second has begun, up to the millisecond before its delivery."""

    async def story(peer: Peer) -> None:
        recalled = await send_at(peer, DUE_MS, b"recalled")
        await send_at(peer, DUE_MS, b"other")
        clock.advance(waited_ms)
        await rounds(peer)
        response = await recall(peer, recalled.ext["recallHandle"])
        assert (response.code, response.ext["msgId"]) == (0, recalled.ext["transactionId"])
        clock.advance(5_500 - waited_ms)
        await rounds(peer)
        assert await bodies(peer) == [b"other"]
        clock.advance(2_000)
        await rounds(peer)
        assert pending(peer) == 0
        [*_, delete] = await every(peer, TIMER)
        expected = {
            "TIMER_DEL_UNIQKEY": f"T+{recalled.ext['transactionId']}",
            "TIMER_OUT_MS": str(START_MS + 5_000),
            "REAL_TOPIC": "T",
        }
        assert (delete.body, delete.tags) == (b"0", "_RECALL_TAG_")
        assert expected.items() <= delete.properties.items()

    with_broker(story, timer_settings(tmp_path), clock)


def test_recall_of_a_delivered_message_is_refused_after_the_clock_is_set_back(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await send_at(peer, DUE_MS)
        clock.set_wall_ms(DUE_MS + 1_000)
        await rounds(peer)
        assert len(await bodies(peer)) == 1
        clock.set_wall_ms(DUE_MS - 1)
        response = await recall(peer, sent.ext["recallHandle"])
        assert response.code == ResponseCode.ILLEGAL_OPERATION
        assert "the wall clock was set back" in response.remark

    with_broker(story, timer_settings(tmp_path), clock)


def test_pending_count_survives_recalls_that_match_nothing(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await send_at(peer, DUE_MS)
        handle = RecallHandle.decode(sent.ext["recallHandle"])
        for uniq_key in ("unknown", handle.uniq_key, handle.uniq_key):
            assert (await recall(peer, handle._replace(uniq_key=uniq_key).encode())).code == 0
        await send_at(peer, DUE_MS + 60_000)
        clock.advance(10_000)
        await rounds(peer)
        assert pending(peer) == 1
        assert await bodies(peer) == []

    with_broker(story, timer_settings(tmp_path), clock)


def test_recall_survives_a_restart_and_a_kill(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    images = CrashImages(monkeypatch, tmp_path)
    images.stop()

    async def before(peer: Peer) -> None:
        sent = await send_at(peer, DUE_MS, b"recalled")
        await send_at(peer, DUE_MS, b"other")
        assert (await recall(peer, sent.ext["recallHandle"])).code == 0
        images.take(peer.broker.settings.store_root)

    async def after(peer: Peer) -> None:
        await rounds(peer)
        clock.set_wall_ms(DUE_MS)
        await rounds(peer)
        assert await bodies(peer) == [b"other"]
        assert pending(peer) == 0
        clock.set_wall_ms(START_MS)

    with_broker(before, timer_settings(tmp_path / "clean"), clock)
    with_broker(after, timer_settings(tmp_path / "clean"), clock)
    with_broker(after, timer_settings(images.roots[0]), clock)


def test_recall_that_a_restart_finds_late_still_cancels(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops before its timer has read the messages; after the start it reads one at a time."""
    settings = timer_settings(tmp_path)

    async def before(peer: Peer) -> None:
        sent = await send_at(peer, DUE_MS, b"recalled")
        await send_at(peer, DUE_MS, b"other")
        assert (await recall(peer, sent.ext["recallHandle"])).code == 0

    async def after(peer: Peer) -> None:
        await rounds(peer)
        assert await bodies(peer) == [b"other"]

    with monkeypatch.context() as patched:
        patched.setattr(timer_service, "MAX_PAUSE_MS", A_DAY_MS)
        with_broker(before, settings, clock)
    clock.set_wall_ms(DUE_MS + 10_000)
    monkeypatch.setattr(timer_service, "READ_MESSAGES", 1)
    with_broker(after, settings, clock)


def test_rolled_message_is_recalled(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await send_at(peer, START_MS + 250_500)
        clock.advance(30_000)
        await rounds(peer)
        assert (await recall(peer, sent.ext["recallHandle"])).code == 0
        for _ in range(30):
            clock.advance(10_000)
            await rounds(peer)
        assert await bodies(peer) == []
        assert pending(peer) == 0

    with_broker(story, timer_settings(tmp_path, timer_roll_window_slots=100), clock)


def test_message_with_a_delete_key_cancels_a_message_of_its_topic(tmp_path: Path, clock) -> None:
    """Clients without RECALL_MESSAGE send this, with the time of the other message."""

    async def story(peer: Peer) -> None:
        await send_at(peer, DUE_MS, b"1", properties="UNIQ_KEY\x01ID\x02")
        await send_at(peer, DUE_MS, b"x", properties="TIMER_DEL_UNIQKEY\x01T+ID\x02")
        stolen = f"TIMER_DELIVER_MS\x01{DUE_MS}\x02TIMER_DEL_UNIQKEY\x01T+ID\x02"
        refused = await peer.send("Other", properties=stolen)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        clock.advance(6_000)
        await rounds(peer)
        assert await bodies(peer) == []

    with_broker(story, timer_settings(tmp_path), clock)


GOOD = RecallHandle("T", "broker-a", DUE_MS, "ID")


@pytest.mark.parametrize(
    ("handle", "topic", "code", "remark"),
    [
        (GOOD._replace(topic="Other").encode(), "T", ResponseCode.ILLEGAL_OPERATION, "topic not match"),
        (GOOD._replace(broker_name="b").encode(), "T", ResponseCode.ILLEGAL_OPERATION, "not available"),
        (
            GOOD._replace(deliver_ms=START_MS).encode(),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "timestamp invalid",
        ),
        (GOOD._replace(deliver_ms=10**17).encode(), "T", ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (GOOD._replace(deliver_ms=-1).encode(), "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        (GOOD._replace(uniq_key="x" * 40_000).encode(), "T", ResponseCode.ILLEGAL_OPERATION, "exceed"),
        ("", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        ("!", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        ("é", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        (
            base64.urlsafe_b64encode(b"v2 T broker-a 1 ID").decode(),
            "T",
            ResponseCode.ILLEGAL_OPERATION,
            "invalid",
        ),
        (base64.urlsafe_b64encode(b"\xff" * 9).decode(), "T", ResponseCode.ILLEGAL_OPERATION, "invalid"),
        ("A" * 100_001, "T", ResponseCode.ILLEGAL_OPERATION, "invalid"),
        (GOOD.encode(), "Unknown", ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    ],
)
def test_bad_handle_is_refused_with_rocketmqs_code(
    tmp_path: Path, clock, handle: str, topic: str, code: int, remark: str
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        refused = await recall(peer, handle, topic)
        assert (refused.code, remark in (refused.remark or "")) == (code, True), refused.remark
        assert len(refused.remark or "") < 500
        assert pending(peer) == 0

    with_broker(story, timer_settings(tmp_path), clock)


def test_handle_is_decoded_with_and_without_padding() -> None:
    for length in range(1, 5):
        handle = RecallHandle("Topic", "broker-a", 1, "x" * length)
        assert RecallHandle.decode(handle.encode()) == handle
        assert RecallHandle.decode(handle.encode().rstrip("=")) == handle
    with pytest.raises(MessageInvalid, match="recall handle is invalid"):
        RecallHandle.decode("no handle")

"""Transactions survive clean restarts and kills between any two appends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.broker.features.transactions.op_messages import OpWriter, finished_offsets, op_draft
from actors.broker.features.transactions.transaction_log import TransactionLog
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from store.message.properties import encode_properties
from store.message.record import RecordDraft
from tests.actors.broker.brokers import Peer, run_now, settings_of, with_broker
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    HALF,
    OP,
    ROLLBACK,
    CrashImages,
    begin,
    end,
    every,
)
from tests.eventually import eventually_async


async def bodies(peer: Peer, topic: str = "T") -> list[bytes]:
    return [message.body for message in await every(peer, topic)]


def saved_offsets(root: Path) -> tuple[int, int]:
    table = orjson.loads((root / "store/config/consumerOffset.json").read_bytes())["offsetTable"]
    key = "RMQ_SYS_TRANS_{}HALF_TOPIC@CID_RMQ_SYS_TRANS"
    return table.get(key.format(""), {}).get("0", 0), table.get(key.format("OP_"), {}).get("0", 0)


def test_open_transactions_survive_a_restart_and_finished_ones_stay_finished(tmp_path: Path, clock) -> None:
    halves: list[RemotingCommand] = []

    async def before(peer: Peer) -> None:
        halves.extend([await begin(peer, b"%d" % number) for number in range(4)])
        await end(peer, halves[0], COMMIT)
        await end(peer, halves[2], ROLLBACK)

    async def after(peer: Peer) -> None:
        for finished in (halves[0], halves[2]):
            assert (await end(peer, finished, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end(peer, halves[3], COMMIT)).code == 0
        assert (await end(peer, halves[1], COMMIT)).code == 0
        assert await bodies(peer) == [b"0", b"3", b"1"]

    async def at_last(peer: Peer) -> None:
        for half in halves:
            assert (await end(peer, half, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert await bodies(peer) == [b"0", b"3", b"1"]

    settings = settings_of(tmp_path)
    with_broker(before, settings, clock)
    with_broker(after, settings, clock)
    with_broker(at_last, settings, clock)


@pytest.mark.parametrize("index", [True, False])
def test_a_kill_between_any_two_appends_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    """The image before each append has the effect of all earlier responses, and the rest can be repeated."""
    halves: list[RemotingCommand] = []
    visible: list[int] = []  # messages that were visible for sure, by image
    images = CrashImages(monkeypatch, tmp_path)

    async def story(peer: Peer) -> None:
        halves.extend([await begin(peer, b"%d" % number) for number in range(4)])
        committed = 0
        for number, outcome in enumerate((COMMIT, ROLLBACK, COMMIT)):
            assert (await end(peer, halves[number], outcome)).code == 0
            committed += outcome == COMMIT
            visible.extend([committed] * (len(images.roots) - len(visible)))
        await eventually_async(lambda: are_marked(peer, 3))
        images.take(peer.broker.settings.store_root)

    async def are_marked(peer: Peer, count: int) -> bool:
        return sum(len(finished_offsets(op.body)) for op in await every(peer, OP)) == count

    store = {"flush": "async", "index": index}
    with_broker(story, settings_of(tmp_path / "killed", store), None)
    images.stop()
    assert len(images.roots) >= 4 + 4 + 1  # halves, two commits, two op messages, the end

    for number, root in enumerate(images.roots):

        async def restarted(peer: Peer, number: int = number) -> None:
            before = await bodies(peer)
            assert before in ([], [b"0"], [b"0", b"2"])
            if number == len(images.roots) - 1:
                assert before == [b"0", b"2"]
            known = len(await every(peer, HALF))
            rolled_back = known > 1 and (await end(peer, halves[1], ROLLBACK)).code
            assert rolled_back in (False, 0, ResponseCode.ILLEGAL_OPERATION)
            for half in halves[:known]:
                await end(peer, half, COMMIT)
            expected = sorted({b"%d" % each for each in range(known)} - {b"1"})
            assert sorted(await bodies(peer)) == expected

        with_broker(restarted, settings_of(root, store))


def test_commit_whose_op_message_was_lost_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves: list[RemotingCommand] = []

    async def before(peer: Peer) -> None:
        monkeypatch.setattr(OpWriter, "write", lambda writer: None)
        halves.append(await begin(peer))
        assert (await end(peer, halves[0], COMMIT)).code == 0
        assert await bodies(peer) == [b"half"]

    async def after(peer: Peer) -> None:
        assert (await end(peer, halves[0], COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end(peer, halves[0], ROLLBACK)).code == ResponseCode.ILLEGAL_OPERATION
        assert await bodies(peer) == [b"half"]
        await eventually_async(lambda: every(peer, OP))

    settings = settings_of(tmp_path)
    with_broker(before, settings)
    monkeypatch.undo()
    with_broker(after, settings)


def test_op_messages_of_every_release_are_read(tmp_path: Path, clock) -> None:
    halves: list[RemotingCommand] = []

    async def before(peer: Peer) -> None:
        halves.extend([await begin(peer, b"%d" % number) for number in range(5)])
        store = peer.store
        store.append(op_draft(b"0", clock.wall_ms(), bytes(8)))  # by RocketMQ 4.9
        store.append(op_draft(b"2,3,", clock.wall_ms(), bytes(8)))  # by RocketMQ 5.3
        store.append(op_draft(b"5,999,", clock.wall_ms(), bytes(8)))  # half messages that do not exist
        other = RecordDraft(OP, 0, b"4,", encode_properties({"TAGS": "x"}))
        store.append(other)

    async def after(peer: Peer) -> None:
        halves.append(await begin(peer, b"5"))
        codes = [(await end(peer, half, COMMIT)).code for half in halves]
        finished = int(ResponseCode.ILLEGAL_OPERATION)
        assert codes == [finished, 0, finished, finished, 0, 0]
        assert await bodies(peer) == [b"1", b"4", b"5"]

    settings = settings_of(tmp_path)
    with_broker(before, settings, clock)
    with_broker(after, settings, clock)


def test_progress_is_saved_only_when_it_is_flushed(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        offsets = peer.tables.offsets
        store = peer.store
        for number in range(3):
            await end(peer, await begin(peer, b"%d" % number), ROLLBACK)
        await begin(peer)
        await peer.messages(OP)
        await run_now(peer.broker, "transaction-progress")
        store.flush_now()
        await run_now(peer.broker, "transaction-progress")
        assert offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 3
        await end(peer, await begin(peer), ROLLBACK)
        await run_now(peer.broker, "transaction-progress")
        assert offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 3, "an earlier half message is open"

    settings = settings_of(tmp_path, {"flush": "async", "flush_interval_ms": 86_400_000})
    with_broker(story, settings, clock)
    assert saved_offsets(tmp_path) == (3, 3)

    async def after(peer: Peer) -> None:
        assert peer.broker.describe()["open_transactions"] == 1

    with_broker(after, settings, clock)


def test_request_before_the_open_transactions_are_known_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        half = await begin(peer)
        known = asyncio.Event()
        monkeypatch.setattr(TransactionLog, "is_loaded", property(lambda _: known.is_set()))
        monkeypatch.setattr(TransactionLog, "when_loaded", lambda _: known.wait())
        ending: Any = asyncio.ensure_future(end(peer, half, COMMIT))
        await peer.send("T", b"later", 1)
        assert not ending.done()
        known.set()
        assert (await ending).code == 0
        assert await bodies(peer) == [b"half"]

    with_broker(story, settings_of(tmp_path))

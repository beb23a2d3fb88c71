"""A broker recognizes the position of a consumer that has read another past of its log."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.log_history import EPOCHS_MAX, HISTORY_FILE, LogHistory
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.raymq_requests import CommitOffsetsBody, OffsetCommit
from tests.actors.broker.brokers import Peer, run, serving, settings_of
from tests.actors.broker.features.transactions.transactions import copy_store
from tests.actors.broker.replication.ha.slaves import master_of

MOVED, RETRY = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY


async def send(peer: Peer, *numbers: int) -> None:
    for number in numbers:
        assert (await peer.send("T", b"%d" % number)).code == 0


def place(response: RemotingCommand) -> tuple[int, int]:
    return response.code, int(response.ext["nextBeginOffset"])


async def history_of(peer: Peer) -> str:
    """Return the id of the epoch, as a new consumer gets it."""
    first = await peer.pull_records("T", history="")
    assert place(first) == (RETRY, 0)
    history = first.ext["history"]
    assert "history" not in (await peer.pull_records("T", history=history)).ext
    return history


async def with_lost_messages(root: Path) -> tuple[BrokerSettings, str]:
    """Send 0 to 9, and restore a copy that ends at 4; return the id of the lost epoch, too."""
    settings = settings_of(root)
    async with serving(settings) as peer:
        await send(peer, *range(5))
    copy_store(settings.store_root, root / "copy")
    async with serving(settings) as peer:
        lost = await history_of(peer)
        await send(peer, *range(5, 10))
    shutil.rmtree(settings.store_root)
    shutil.move(root / "copy" / "store", settings.store_root)
    return settings, lost


def test_restored_copy_moves_consumers_to_where_their_past_ends(tmp_path: Path) -> None:
    """Also after another restart, and if it has as many new messages as were lost."""

    async def story() -> None:
        settings, lost = await with_lost_messages(tmp_path)
        async with serving(settings) as peer:
            await send(peer, *range(10, 20))
        async with serving(settings) as peer:
            moved = await peer.pull_records("T", 10, history=lost)
            assert place(moved) == (MOVED, 5)
            history = moved.ext["history"]
            found = await peer.pull_records("T", 5, history=history)
            assert (place(found), found.ext["count"]) == ((0, 15), "10")
            kept = await peer.pull_records("T", 5, history=lost)  # read before the copy was made
            assert place(kept) == (RETRY, 5)

    run(story)


def test_restored_copy_lowers_commits_of_its_lost_past(tmp_path: Path) -> None:
    """A consumer whose lease ends commits before it pulls again; the next one starts there."""

    async def story() -> None:
        settings, lost = await with_lost_messages(tmp_path)
        async with serving(settings) as peer:
            await send(peer, *range(10, 20))
            for offset, history, expected in (
                (10, lost, 5), (3, lost, 3), (10, "", 10), (12, await history_of(peer), 12)
            ):  # fmt: skip
                commit = OffsetCommit("T", 0, offset, 0, history)
                body = CommitOffsetsBody("CG", "c", [commit]).encode()
                assert (await peer.ask(RayMQRequestCode.COMMIT_OFFSETS, body=body)).code == 0
                assert (await peer.committed("CG", "T")).ext["offset"] == str(expected)

    run(story)


def test_restarts_keep_the_positions_of_consumers(tmp_path: Path) -> None:
    async def story() -> None:
        settings, histories = settings_of(tmp_path), list[str]()
        for number in range(3):
            async with serving(settings) as peer:
                await send(peer, number)
                histories.append(await history_of(peer))
        async with serving(settings) as peer:
            for number, history in enumerate(histories, 1):
                assert place(await peer.pull_records("T", number, history=history)) == (RETRY, number)
            for other in ("", "no id", "12"):
                assert place(await peer.pull_records("T", 3, history=other)) == (RETRY, 3)
            assert "history" not in (await peer.pull_records("T", 3)).ext  # a client that does not ask

    run(story)


def test_killed_broker_keeps_the_positions_of_consumers(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, {"flush": "async"})
        async with serving(settings) as peer:
            await send(peer, *range(5))
            history = await history_of(peer)
            copy_store(settings.store_root, tmp_path / "killed")
        async with serving(settings_of(tmp_path / "killed")) as peer:
            assert place(await peer.pull_records("T", 5, history=history)) == (RETRY, 5)

    run(story)


def test_promoted_slave_keeps_the_positions_of_consumers(tmp_path: Path) -> None:
    """It does not know the epochs of the former master, but has all that was read in them."""

    async def story() -> None:
        settings = master_of(tmp_path)
        async with serving(settings) as peer:
            await send(peer, *range(5))
            history = await history_of(peer)
            copy_store(settings.store_root, tmp_path / "slave")
        (tmp_path / "slave" / "store" / HISTORY_FILE).unlink()
        async with serving(master_of(tmp_path / "slave")) as peer:
            assert place(await peer.pull_records("T", 5, history=history)) == (RETRY, 5)
            assert place(await peer.pull_records("T", 6, history=history)) == (MOVED, 5)  # lost at failover

    run(story)


def test_first_pull_beyond_the_log_gets_the_committed_offset(tmp_path: Path) -> None:
    """RocketMQ's clients name no epoch. After a restore, the present end would skip the new messages."""

    async def story() -> None:
        settings = settings_of(tmp_path)
        async with serving(settings) as peer:
            await send(peer, *range(5))
            await peer.commit("CG", "T", 4)
        async with serving(settings) as peer:
            await send(peer, 5, 6)
            assert place(await peer.pull("T", 10)) == (MOVED, 4)
            assert place(await peer.pull("T", 10)) == (MOVED, 7)  # the second pull of this place

    run(story)


@pytest.mark.parametrize("content", [b"", b"{", b'{"epochs":[["x",0]]}', b'{"epochs":[["a-00000000",-1]]}'])
def test_damaged_history_forgets_the_epochs_and_moves_nobody(tmp_path: Path, content: bytes) -> None:
    before = LogHistory.begin(tmp_path, 100, 1_000, random.Random(1))
    (tmp_path / HISTORY_FILE).write_bytes(content)
    after = LogHistory.begin(tmp_path, 300, 2_000, random.Random(2))
    assert after.end_of(before.current) == 300


def test_lost_end_of_the_log_ends_all_epochs_before_it(tmp_path: Path) -> None:
    rng = random.Random(1)
    first = LogHistory.begin(tmp_path, 0, 1_000, rng)
    second = LogHistory.begin(tmp_path, 500, 2_000, rng)
    third = LogHistory.begin(tmp_path, 400, 1_500, rng)  # the clock was set back, too
    assert [third.end_of(each.current) for each in (first, second, third)] == [400, 400, None]
    assert third.end_of("7d1-00000000") == 400  # began at 2,001 ms


def test_number_of_epochs_is_bounded(tmp_path: Path) -> None:
    many = [[f"{each:x}-00000000", each] for each in range(1, EPOCHS_MAX + 1)]
    (tmp_path / HISTORY_FILE).write_text(json.dumps({"epochs": many}))
    history = LogHistory.begin(tmp_path, 5_000, 5_000, random.Random(1))
    kept = json.loads((tmp_path / HISTORY_FILE).read_text())["epochs"]
    assert (len(kept), kept[0], kept[-1]) == (EPOCHS_MAX, many[1], [history.current, 5_000])
    assert history.end_of("2-00000000") == 3

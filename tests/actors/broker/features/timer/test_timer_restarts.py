"""Timers survive clean restarts, kills between any two appends, and damage of the timer's files."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from actors.broker.features.timer.timer_service import TimerService
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_files import follow_timer
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.features.timer.timers import (
    START_MS,
    bodies,
    pending,
    rounds,
    send_at,
    timer_settings,
)
from tests.actors.broker.features.transactions.transactions import CrashImages, every
from tests.eventually import eventually_async

LATER_MS = 30_000
FILES = ("timerwheel", "timerlog", "config/timercheck")


async def send_some(peer: Peer) -> None:
    for number in range(10):
        await send_at(peer, START_MS + 100 * (number + 1), b"%d" % number)
    await send_at(peer, START_MS + LATER_MS, b"later")


async def deliver_and_set_back(peer: Peer, clock, elapsed_ms: int) -> None:
    """Deliver a message; then set the clock back by almost an hour, to this time after START_MS."""
    await send_at(peer, START_MS + 100, b"first")
    clock.advance(3_600_000)
    await rounds(peer)
    clock.set_wall_ms(START_MS + elapsed_ms)


async def bodies_at(peer: Peer, clock, elapsed_ms: int) -> list[bytes]:
    """Return what is delivered when this time has passed since START_MS."""
    clock.set_wall_ms(START_MS + elapsed_ms)
    await rounds(peer)
    return await bodies(peer)


def test_promoted_slave_delivers_only_what_its_master_has_not(tmp_path: Path, clock) -> None:
    settings = timer_settings(tmp_path)

    async def master(peer: Peer) -> None:
        await send_some(peer)
        clock.advance(1_050)
        await rounds(peer)
        assert len(await bodies(peer)) == 10

    async def promoted(peer: Peer) -> None:
        await rounds(peer)
        assert pending(peer) == 1
        assert len(await bodies(peer)) == 10
        clock.advance(LATER_MS)
        await rounds(peer)
        assert (await bodies(peer))[10:] == [b"later"]

    with_broker(master, settings, clock)
    become_slave(settings.store_root)
    with_broker(promoted, settings, clock)


def become_slave(root: Path) -> None:
    """Leave what a slave has of the timer: its progress, but no files."""
    checkpoint = TimerCheckpoint.read(root / "config" / "timercheck")
    assert checkpoint is not None
    for name in FILES:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    follow_timer(root, checkpoint)


def test_promoted_slave_delivers_what_waits_since_the_clock_was_set_back(tmp_path: Path, clock) -> None:
    settings = timer_settings(tmp_path)

    async def master(peer: Peer) -> None:
        await deliver_and_set_back(peer, clock, 120_000)
        await send_at(peer, START_MS + 125_000, b"second")
        await rounds(peer)
        assert await bodies(peer) == [b"first"]

    async def promoted(peer: Peer) -> None:
        assert await bodies_at(peer, clock, 124_999) == [b"first"]
        assert await bodies_at(peer, clock, 125_000) == [b"first", b"second"]

    with_broker(master, settings, clock)
    become_slave(settings.store_root)
    with_broker(promoted, settings, clock)


def test_second_change_of_the_master_after_a_clock_was_set_back_loses_no_timer(tmp_path: Path, clock) -> None:
    """What was delivered since the clock was set back may be delivered again by each next master."""
    settings = timer_settings(tmp_path)

    async def first(peer: Peer) -> None:
        await deliver_and_set_back(peer, clock, 120_000)
        for delay_ms, body in ((125_000, b"second"), (130_000, b"third"), (140_000, b"fourth")):
            await send_at(peer, START_MS + delay_ms, body)
        await rounds(peer)

    async def next_one(peer: Peer, until_ms: int, expected: set[bytes]) -> None:
        assert set(await bodies_at(peer, clock, until_ms - 1)) < expected
        assert set(await bodies_at(peer, clock, until_ms)) == expected

    with_broker(first, settings, clock)
    for until_ms, expected in (
        (125_000, {b"first", b"second"}),
        (130_000, {b"first", b"second", b"third"}),
        (140_000, {b"first", b"second", b"third", b"fourth"}),
    ):
        become_slave(settings.store_root)
        with_broker(partial(next_one, until_ms=until_ms, expected=expected), settings, clock)


def test_clean_restart_within_a_second_delivers_each_message_once(tmp_path: Path, clock) -> None:
    settings = timer_settings(tmp_path)

    async def before(peer: Peer) -> None:
        await send_some(peer)
        clock.advance(550)
        await rounds(peer)
        assert await bodies(peer) == [b"%d" % number for number in range(5)]
        assert pending(peer) == 6

    async def after(peer: Peer) -> None:
        await rounds(peer)
        assert pending(peer) == 6
        assert len(await bodies(peer)) == 5
        clock.advance(450)
        await rounds(peer)
        assert await bodies(peer) == [b"%d" % number for number in range(10)]
        assert pending(peer) == 1

    async def at_last(peer: Peer) -> None:
        clock.advance(LATER_MS)
        await rounds(peer)
        assert (await bodies(peer))[10:] == [b"later"]
        assert pending(peer) == 0

    for story in (before, after, at_last):
        with_broker(story, settings, clock)
    files = tmp_path / "store"
    assert (files / "timerwheel").stat().st_size == 38_707_200
    assert [path.name for path in (files / "timerlog").iterdir()] == [f"{0:020d}"]
    assert (files / "config" / "timercheck").stat().st_size == 4096
    assert TimerCheckpoint.read(files / "config" / "timercheck").queue_offset == 11  # type: ignore[union-attr]


def test_broker_without_timer_messages_creates_no_timer_files(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await rounds(peer)

    with_broker(story, timer_settings(tmp_path), clock)
    names = {path.name for path in (tmp_path / "store").rglob("*")}
    assert not names & {"timerwheel", "timerlog", "timercheck", "timermetrics"}


def test_messages_sent_before_a_long_stop_are_delivered_after_it(tmp_path: Path, clock) -> None:
    async def before(peer: Peer) -> None:
        await send_some(peer)

    async def after(peer: Peer) -> None:
        await rounds(peer)
        assert len(await bodies(peer)) == 11

    with_broker(before, timer_settings(tmp_path), clock)
    clock.advance(20 * 86_400_000)
    with_broker(after, timer_settings(tmp_path), clock)


def test_messages_not_in_the_wheel_are_delivered_after_a_long_stop(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 20 days the wheel has no room for new messages until it has passed the seconds of the stop."""

    async def idle(timer: TimerService) -> int:
        return 1

    async def before(peer: Peer) -> None:
        await send_some(peer)
        await rounds(peer)
        monkeypatch.setattr(TimerService, "round", idle)
        await send_at(peer, clock.wall_ms() + 1000, b"not in the wheel")

    async def after(peer: Peer) -> None:
        await rounds(peer)
        assert len(await bodies(peer)) == 12

    with_broker(before, timer_settings(tmp_path), clock)
    monkeypatch.undo()
    clock.advance(20 * 86_400_000)
    with_broker(after, timer_settings(tmp_path), clock)


def test_clock_that_is_set_back_before_a_restart_delays_no_message(tmp_path: Path, clock) -> None:
    settings = timer_settings(tmp_path)

    async def before(peer: Peer) -> None:
        await deliver_and_set_back(peer, clock, 0)
        await send_at(peer, START_MS + 2_500, b"second")
        await rounds(peer)

    async def after(peer: Peer) -> None:
        await send_at(peer, START_MS + 3_500, b"third")
        for elapsed_ms, expected in ((2_499, 1), (2_500, 2), (3_499, 2), (3_500, 3)):
            assert len(await bodies_at(peer, clock, elapsed_ms)) == expected, elapsed_ms
        assert pending(peer) == 0

    async def at_last(peer: Peer) -> None:
        await rounds(peer)
        assert await bodies(peer) == [b"first", b"second", b"third"]

    for story in (before, after, at_last):
        with_broker(story, settings, clock)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_kill_between_any_two_appends_loses_no_timer(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """An image is what a kill at an append leaves: later starts deliver all, and nothing before its time."""
    images = CrashImages(monkeypatch, tmp_path)
    sent: list[int] = []
    counts: list[int] = []

    async def story(peer: Peer) -> None:
        for step in range(4):
            for number in range(3):
                counts.append(len(sent))
                sent.append(500 * step + 400 * number + 300)
                await send_at(peer, START_MS + sent[-1], b"%d" % sent[-1])
            clock.advance(500)
            await rounds(peer)
            counts.extend([len(sent)] * (len(images.roots) - len(counts)))

    with_broker(story, timer_settings(tmp_path / "killed", {"flush": flush}), clock)
    images.stop()
    assert len(images.roots) >= 20
    for root, count in zip(images.roots[::2], counts[::2], strict=False):
        clock.set_wall_ms(START_MS)

        async def restarted(peer: Peer, count: int = count) -> None:
            await rounds(peer)
            found = [int(body) for body in await bodies(peer)]
            later = [int(body) for body in await bodies_at(peer, clock, 10_000)][len(found) :]
            assert set(sent[:count]) <= {*found, *later}
            assert pending(peer) == 0

        with_broker(restarted, timer_settings(root, {"flush": flush}), clock)


def damage_nothing(_: Path) -> None:
    """Leave the files as the kill has left them."""


def remove_wheel(store: Path) -> None:
    (store / "timerwheel").unlink()


def shorten_wheel(store: Path) -> None:
    (store / "timerwheel").write_bytes(bytes(100))


def zero_wheel(store: Path) -> None:
    path = store / "timerwheel"
    path.write_bytes(bytes(path.stat().st_size))


def remove_log(store: Path) -> None:
    shutil.rmtree(store / "timerlog")


def zero_log(store: Path) -> None:
    path = store / "timerlog" / f"{0:020d}"
    path.write_bytes(bytes(path.stat().st_size))


def remove_checkpoint(store: Path) -> None:
    (store / "config" / "timercheck").unlink()


def fill_checkpoint(store: Path) -> None:
    (store / "config" / "timercheck").write_bytes(b"\xff" * 4096)


@pytest.mark.parametrize(
    "damage",
    [
        damage_nothing,
        remove_wheel,
        shorten_wheel,
        zero_wheel,
        remove_log,
        zero_log,
        remove_checkpoint,
        fill_checkpoint,
    ],
)
def test_damaged_files_are_rebuilt_from_the_commit_log(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch, damage
) -> None:
    images = CrashImages(monkeypatch, tmp_path)
    settings = timer_settings(tmp_path / "killed", timer_log_file_bytes=4096)
    images.stop()

    async def story(peer: Peer) -> None:
        for number in range(100):
            await send_at(peer, START_MS + 10_000 * (number + 1), b"%d" % number)
        clock.advance(40_000)
        await rounds(peer)

        def is_saved() -> bool:
            found = TimerCheckpoint.read(settings.store_root / "config" / "timercheck")
            return found is not None and found.queue_offset == 100 and found.last_read_ms > START_MS + 39_000

        await eventually_async(is_saved)
        images.take(settings.store_root)

    with_broker(story, settings, clock)
    [root] = images.roots
    damage(root / "store")
    has_checkpoint = damage not in (remove_checkpoint, fill_checkpoint)

    async def restarted(peer: Peer) -> None:
        await rounds(peer)
        found = await bodies(peer)
        # Without a checkpoint, those that were delivered before are delivered again.
        assert len(found) == (4 if has_checkpoint else 8)
        assert pending(peer) == 96
        clock.advance(960_000)
        await rounds(peer)
        assert (await bodies(peer))[len(found) :] == [b"%d" % number for number in range(4, 100)]
        assert pending(peer) == 0

    with_broker(restarted, timer_settings(root, timer_log_file_bytes=4096), clock)


def test_pending_timers_of_rocketmqs_store_are_delivered(clean_store, clock) -> None:
    """RocketMQ stores no exact time for TIMER_DELAY_MS: its messages are due at the end of their second."""
    rocket = clean_store()
    rows = [json.loads(line) for line in rocket.expected.read_text().splitlines()]
    timers = [row for row in rows if row["topic"] == "rmq_sys_wheel_timer"]
    already = [row for row in rows if row["topic"] == "Fix7_timer"]
    outs = sorted(int(row["properties"]["TIMER_OUT_MS"]) for row in timers)[len(already) :]
    clock.set_wall_ms(timers[-1]["storeTimestamp"] + 60_000)

    async def story(peer: Peer) -> None:
        await rounds(peer)
        assert pending(peer) == len(outs) > 0
        for number, out_ms in enumerate(outs):
            clock.set_wall_ms(out_ms + 999)
            await rounds(peer)
            assert pending(peer) == len(outs) - number
            clock.set_wall_ms(out_ms + 1_000)
            await rounds(peer)
        assert pending(peer) == 0
        found = [each for queue_id in range(8) for each in await every(peer, "Fix7_timer", queue_id)]
        assert len(found) == len(timers)
        assert len({each.uniq_key for each in found}) == len(timers)

    sizes = {"consume_queue_file_bytes": 20_000, "index_slots": 5_000, "index_entries": 20_000}
    settings = timer_settings(rocket.root.parent, sizes, adopt_store=True)
    with_broker(story, settings, clock)

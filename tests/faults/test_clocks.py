"""Jumps of the wall clock by an hour in both directions, and a wall clock that stands still.

Store timestamps never decrease, and no wait, lease or delivery is early, late or dropped.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from actors.wire.codes import ResponseCode
from store.common.clock import SystemClock
from store.message.record import decode_records
from store.message_store import MessageStore
from tests.actors.broker.brokers import Peer, run_now, settings_of, with_broker
from tests.checkers import Recorder
from tests.conftest import ClockAtRest
from tests.eventually import NEVER_S
from tests.faults.aftermath import check_store
from tests.faults.scenarios import TOPIC, TickingClock, Writer, open_store
from tests.store.checkpoints import make_checkpoint

pytestmark = [pytest.mark.faults]

HOUR_MS = 3_600_000
NEVER_MS = int(NEVER_S * 1000)
JUMPS = {"forward": HOUR_MS, "back": -HOUR_MS}


class JumpingClock(TickingClock):
    """Ticking clock whose wall time can jump or stand still, while its monotonic time continues."""

    stands_still = False

    def wall_ms(self) -> int:
        return self._wall_ms if self.stands_still else super().wall_ms()

    def jump(self, ms: int) -> None:
        self._wall_ms += ms

    def pass_by(self, ms: int) -> None:
        """Advance only the monotonic time."""
        self._monotonic_ns += ms * 1_000_000


class JumpingSystemClock(SystemClock):
    """System clock whose wall time can be shifted back or stopped."""

    __slots__ = ("behind_ms", "stands_at_ms")

    def __init__(self) -> None:
        self.behind_ms = 0
        self.stands_at_ms = 0

    def wall_ms(self) -> int:
        return self.stands_at_ms or super().wall_ms() - self.behind_ms


def times(store: MessageStore, queue_id: int = 0) -> list[int]:
    found = store.get_message(TOPIC, queue_id, 0, 32, 1 << 20)
    return [message.store_timestamp for run in found.slices for message in decode_records(run)]


@pytest.mark.parametrize("jump", [*JUMPS, "still"])
def test_store_timestamps_never_decrease_over_jump_and_restart(tmp_path: Path, jump: str) -> None:
    clock = JumpingClock()
    events = Recorder().events
    for _ in range(2):
        store = open_store(tmp_path / "store", clock)
        writer = Writer(store.root, store, Recorder(events=events))
        for number in range(12):
            writer.send()
            if number == 6:
                clock.jump(JUMPS.get(jump, 0))
                clock.stands_still = jump == "still"
        writer.settle()
        for queue_id in range(3):
            found = times(store, queue_id)
            assert found == sorted(found)
            for moment in found:
                assert store.offset_by_timestamp(TOPIC, queue_id, moment) == found.index(moment)
        store.close()
        if jump in JUMPS:
            clock.jump(-HOUR_MS)  # a second jump while the store is closed
    check_store(tmp_path / "store", jump, events=events, derived=True)


@pytest.mark.parametrize("jump", [*JUMPS, "still"])
def test_held_pulls_and_group_members_ignore_the_wall_clock(tmp_path: Path, jump: str) -> None:
    clock = JumpingSystemClock()

    async def story(peer: Peer) -> None:
        await peer.send("T", b"before")
        await peer.heartbeat("client", "G", T="*")
        waiting = asyncio.create_task(peer.pull("T", 1, wait_ms=NEVER_MS))
        await peer.committed("G", "T")  # handled after the pull, which is therefore held now
        clock.behind_ms = -JUMPS.get(jump, 0)
        clock.stands_at_ms = clock.wall_ms() if jump == "still" else 0
        peer.groups.requests.expire()
        assert peer.groups.clients.group("G") is not None
        assert not waiting.done()
        assert (await peer.send("T", b"after")).code == ResponseCode.SUCCESS
        found = decode_records((await waiting).body)
        assert [message.body for message in found] == [b"after"]
        stored = [message.store_timestamp for message in await peer.messages("T")]
        assert stored == sorted(stored)

    with_broker(story, settings_of(tmp_path, max_hold_ms=NEVER_MS), clock)


@pytest.mark.parametrize("jump", [*JUMPS, "still"])
def test_delayed_messages_are_on_time_over_a_jump(tmp_path: Path, clock: ClockAtRest, jump: str) -> None:
    """Level 2 delays by 5 s. One message is sent before the jump of the clock, another right after it."""

    async def story(peer: Peer) -> None:
        async def arrived() -> list[bytes]:
            await peer.loop.reads.caught_up()
            await run_now(peer.broker, "delayed-delivery")
            return [message.body for message in await peer.messages("T")]

        def pass_by(ms: int) -> None:
            wall_ms = clock.wall_ms()
            clock.advance(ms)
            if jump == "still":
                clock.set_wall_ms(wall_ms)

        async def send(body: bytes) -> None:
            sent = await peer.send("T", body, properties="DELAY\x012\x02")
            assert sent.code == ResponseCode.SUCCESS, sent.remark

        await send(b"before")
        assert await arrived() == []
        pass_by(2_000)
        clock.set_wall_ms(clock.wall_ms() + JUMPS.get(jump, 0))
        assert await arrived() == []
        await send(b"after")
        assert await arrived() == []
        pass_by(2_950)
        assert await arrived() == [], "early"
        pass_by(100)
        assert await arrived() == [b"before"], "late, or early"
        pass_by(1_850)
        assert await arrived() == [b"before"], "early"
        pass_by(200)
        assert await arrived() == [b"before", b"after"], "late"

    with_broker(story, settings_of(tmp_path, {"flush": "async"}), clock)


@pytest.mark.parametrize("jump", [*JUMPS, "still"])
def test_retention_after_a_jump_keeps_files_that_expire_in_over_an_hour(tmp_path: Path, jump: str) -> None:
    """Files are 2.5 hours old and expire after 4: a jump of one hour deletes none, a second jump does."""
    clock = JumpingClock()
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    settings = {"file_reserved_time_h": 4, "delete_when_h": every_hour, "preallocate": False}
    store = open_store(tmp_path / "store", clock, **settings)
    writer = Writer(store.root, store, Recorder())
    for _ in range(6):
        writer.send(padding=3000)
    writer.settle()
    make_checkpoint(store)
    files = sorted((store.root / "commitlog").iterdir())
    for path in files:
        changed_s = (clock.wall_ms() - 5 * HOUR_MS // 2) / 1000
        os.utime(path, (changed_s, changed_s))

    def clean() -> list[Path]:
        for _ in range(8):
            clock.pass_by(store.settings.clean_interval_ms)
            store.advance()
            store.retention.finish()
        return sorted((store.root / "commitlog").iterdir())

    clock.stands_still = jump == "still"
    clock.jump(JUMPS.get(jump, 0))
    assert clean() == files
    if jump == "forward":
        clock.jump(HOUR_MS)
        assert clean() == files[-1:]
    store.close()

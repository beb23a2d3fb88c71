"""BusyPoll keeps the event loop polling for the configured time after a turn, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from actors.remoting.busy_poll import BusyPoll


class SteppingClock:
    """A clock that advances by ten microseconds each time it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def monotonic_ns(self) -> int:
        self.reads += 1
        return self.reads * 10_000

    def wall_ms(self) -> int:
        return 0


def clock_reads(for_us: int, turns: str) -> int:
    """Return how often the clock is read after turns with one request (".") or several ("+")."""
    clock = SteppingClock()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        poll = BusyPoll(clock, for_us)
        for turn in turns:
            if turn == "+":
                poll.note_concurrent()
            poll.after_turn(loop)
        for _ in range(1000):
            await asyncio.sleep(0)

    asyncio.run(story())
    return clock.reads


@pytest.mark.parametrize(("turns", "reads"), [("..", 11), ("......", 15)])
def test_polling_stops_when_the_time_after_the_last_turn_is_over(turns: str, reads: int) -> None:
    assert clock_reads(100, turns) == reads


@pytest.mark.parametrize(("turns", "polls"), [(".", False), ("+.", False), ("+..", True)])
def test_polling_needs_two_turns_with_one_request(turns: str, polls: bool) -> None:
    assert (clock_reads(100, turns) > 0) is polls


def test_zero_time_disables_polling() -> None:
    assert clock_reads(0, "......") == 0

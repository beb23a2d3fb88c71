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


def clock_reads(for_us: int, turns: int) -> int:
    clock = SteppingClock()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        poll = BusyPoll(clock, for_us)
        for _ in range(turns):
            poll.after_turn(loop)
        for _ in range(1000):
            await asyncio.sleep(0)

    asyncio.run(story())
    return clock.reads


@pytest.mark.parametrize(("turns", "reads"), [(1, 11), (5, 15)])
def test_polling_stops_when_the_time_after_the_last_turn_is_over(turns: int, reads: int) -> None:
    assert clock_reads(100, turns) == reads


def test_zero_time_disables_polling() -> None:
    assert clock_reads(0, 3) == 0

"""The loop stays awake for the time it was given after a turn, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from actors.remoting.busy_poll import BusyPoll


class SteppingClock:
    """Every look at it takes ten microseconds."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic_ns(self) -> int:
        self.looks += 1
        return self.looks * 10_000

    def wall_ms(self) -> int:
        return 0


def looks_of(for_us: int, turns: int) -> int:
    clock = SteppingClock()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        poll = BusyPoll(clock, for_us)
        for _ in range(turns):
            poll.after_turn(loop)
        for _ in range(1000):
            await asyncio.sleep(0)

    asyncio.run(story())
    return clock.looks


@pytest.mark.parametrize(("turns", "looks"), [(1, 11), (5, 15)])
def test_it_looks_until_the_time_after_the_last_turn_is_up(turns: int, looks: int) -> None:
    assert looks_of(100, turns) == looks


def test_without_a_time_it_never_looks() -> None:
    assert looks_of(0, 3) == 0

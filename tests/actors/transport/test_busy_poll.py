"""BusyPoll keeps the event loop polling for the configured time after a turn, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from actors.transport.busy_poll import BusyPoll


class SteppingClock:
    """A clock that advances by ten microseconds each time it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def monotonic_ns(self) -> int:
        self.reads += 1
        return self.reads * 10_000

    def wall_ms(self) -> int:
        return 0


def polls_after(for_us: int, turns: str) -> int:
    """Return how often the loop polls after turns, each poll 10 µs after the one before.

    "." is a turn with one request, "+" one with several, and "_" one whose request arrived 400 µs late.
    """
    clock = SteppingClock()

    async def story() -> int:
        loop = asyncio.get_running_loop()
        poll = BusyPoll(clock, for_us)
        for turn in turns:
            if turn == "_":
                clock.reads += 40
            poll.note_received(is_alone=turn != "+")
            poll.after_turn(loop)
        before = clock.reads
        for _ in range(1000):
            await asyncio.sleep(0)
        return clock.reads - before

    return asyncio.run(story())


@pytest.mark.parametrize("turns", ["..", "......"])
def test_polling_stops_when_the_time_after_the_last_turn_is_over(turns: str) -> None:
    assert polls_after(100, turns) == 10


@pytest.mark.parametrize(("turns", "polls"), [(".", False), ("+.", False), ("+..", True)])
def test_polling_needs_two_turns_with_one_request(turns: str, polls: bool) -> None:
    assert (polls_after(100, turns) > 0) is polls


@pytest.mark.parametrize(
    ("turns", "polls"), [("_____", False), ("_..", True), ("...._", True), ("....___", False)]
)
def test_polling_needs_requests_that_follow_soon(turns: str, polls: bool) -> None:
    assert (polls_after(100, turns) > 1) is polls  # a poll that was begun before looks at the time once


def test_zero_time_disables_polling() -> None:
    assert polls_after(0, "......") == 0

"""The beat of an idle process: what can wait runs together, twice per second, and wakes the process once.

A timer of half a second or more ends at a multiple of half a second, at most a quarter of a second early or
late. A shorter one ends when it is due.
"""

from __future__ import annotations

import asyncio
from typing import Final

BEAT_MS: Final = 500
"""The longest pause of a task that looks for work which nothing announces."""
_BEAT_S: Final = BEAT_MS / 1000


def on_beat_s(delay_s: float, now_s: float) -> float:
    """Return the time from `now_s` to the beat that is nearest to the end of `delay_s`."""
    return delay_s if delay_s < _BEAT_S else round((now_s + delay_s) / _BEAT_S) * _BEAT_S - now_s


def pause_ms(left_ms: int | None, least_ms: int) -> int:
    """Return how long to wait for work that is due in `left_ms`, or for any if that is None."""
    return max(BEAT_MS if left_ms is None else min(left_ms, BEAT_MS), least_ms)


async def sleep(delay_s: float) -> None:
    """Sleep until the beat that is nearest to the end of `delay_s`."""
    await asyncio.sleep(on_beat_s(delay_s, asyncio.get_running_loop().time()))

"""Waiting: how a command waits for other processes, by a clock that tests replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from store.common.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class Waiting:
    """Repeats checks until a time-out.

    Attributes:
        clock: Measures the time-outs.
        sleep: Waits for a number of seconds.
    """

    clock: Clock
    sleep: Callable[[float], None]

    def now_s(self) -> float:
        """Return the seconds of the monotonic clock."""
        return self.clock.monotonic_ns() / 1e9

    def deadline(self, timeout_s: float, pause_s: float) -> Deadline:
        """Return the end of a check that is repeated, every `pause_s` seconds for `timeout_s` seconds."""
        return Deadline(self, self.now_s() + timeout_s, pause_s)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end, at `end_s` of the monotonic clock, of a check that is repeated."""

    waiting: Waiting
    end_s: float
    pause_s: float

    def pause(self) -> bool:
        """Sleep before the next check; return False, without sleeping, after the deadline."""
        if self.waiting.now_s() > self.end_s:
            return False
        self.waiting.sleep(self.pause_s)
        return True


SYSTEM_WAITING = Waiting(SystemClock(), time.sleep)
"""Waits by the clocks of the operating system."""

"""Polling: how a command waits for other processes, by a clock that tests replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from store.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class Polling:
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

    def begin(self, timeout_s: float, pause_s: float) -> Poll:
        """Begin to repeat a check, every `pause_s` seconds for `timeout_s` seconds."""
        return Poll(self, self.now_s() + timeout_s, pause_s)


@dataclass(frozen=True, slots=True)
class Poll:
    """A check that is repeated until `deadline_s` of the monotonic clock."""

    polling: Polling
    deadline_s: float
    pause_s: float

    def pause(self) -> bool:
        """Sleep before the next check; return False, without sleeping, after the deadline."""
        if self.polling.now_s() > self.deadline_s:
            return False
        self.polling.sleep(self.pause_s)
        return True


SYSTEM = Polling(SystemClock(), time.sleep)
"""Waits by the clocks of the operating system."""

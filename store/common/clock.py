"""Clock: the injected source of time, so that tests control it."""

import time
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000


class Clock(Protocol):
    """A wall clock for timestamps, and a monotonic clock for leases and time-outs."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the Unix epoch; the value may jump forwards or backwards."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary moment; the value never decreases."""


class SystemClock:
    """The clocks of the operating system."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Return the milliseconds since the Unix epoch."""
        return time.time_ns() // NS_PER_MS

    # Not wrapped in a Python function, because it is called often in each loop turn.
    monotonic_ns = staticmethod(time.monotonic_ns)

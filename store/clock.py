"""Time comes in by a parameter (design law 12)."""

import time
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000


class Clock(Protocol):
    """Two clocks: one that people read, and one that never goes back, for leases and time-outs."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump either way."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; never decreases."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // NS_PER_MS

    monotonic_ns = staticmethod(time.monotonic_ns)  # with no call of ours around it: a turn asks often

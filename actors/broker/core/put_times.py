"""PutTimes: measures the time from the append of a message to its confirmation (RocketMQ StoreStatsService).

All puts of one turn of the event loop get the time of the first one, so the clock is read twice per turn and
not for each message. They are counted in two histograms, which are reset once a minute; RocketMQ's tools get
those of the last whole minute.

    ranges       <=0  0-10  10-50  50-100  100-200  200-500 ms  0.5-1  1-2  2-3  3-4  4-5  5-10  10- s
    percentiles  steps of 1 ms to 20, 2 to 50, 5 to 100, 10 to 200, 50 to 500, 100 to 1000, 1000 to 10,000 ms
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from store.common.clock import NS_PER_MS, Clock

WINDOW_NS = 60_000_000_000
# A time is counted in the first bucket whose bound is above it.
_RANGES_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_NAMES = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]"),
    *("[500ms~1s]", "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
_STEPS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9))
# A time is counted in the first bucket whose bound is not below it; the last bucket has no bound.
_BOUNDS_MS = tuple(accumulate(chain.from_iterable(repeat(step, times) for step, times in _STEPS)))


class _Turn(NamedTuple):
    """The puts of one turn; they are confirmed when the log is confirmed up to `end`."""

    end: int
    begin_ns: int
    puts: int


class _Minute:
    """The two histograms of one minute."""

    __slots__ = ("percentiles", "ranges")

    def __init__(self) -> None:
        self.ranges = [0] * (len(_RANGES_MS) + 1)
        self.percentiles = [0] * (len(_BOUNDS_MS) + 1)


class PutTimes:
    """The histograms of one broker's put times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.longest_ms = 0
        self.puts = 0
        """Number of puts in the current turn."""
        self._begin_ns = 0
        self.turns: deque[_Turn] = deque()
        """Turns whose puts are not confirmed yet, oldest first."""
        self._minute = _Minute()
        self._last: _Minute | None = None
        self._rolled_ns = clock.monotonic_ns()

    def begin(self) -> None:
        """Record the first put of a turn. The caller counts further puts of the turn in `puts`."""
        self._begin_ns = self._clock.monotonic_ns()
        self.puts = 1

    def end_turn(self, written: int) -> None:
        """End a turn that has puts; `written` is the log position after the last one."""
        self.turns.append(_Turn(written, self._begin_ns, self.puts))
        self.puts = 0

    def count_confirmed(self, confirmed: int) -> None:
        """Move the turns whose puts end at or before log position `confirmed` from `turns` to the histograms.

        The first of them must be confirmed.
        """
        now_ns = self._clock.monotonic_ns()
        while self.turns and self.turns[0].end <= confirmed:
            turn = self.turns.popleft()
            self.count((now_ns - turn.begin_ns) // NS_PER_MS, turn.puts)

    def count(self, took_ms: int, puts: int = 1) -> None:
        """Count `puts` puts that took `took_ms` each."""
        self._minute.ranges[bisect_right(_RANGES_MS, took_ms)] += puts
        self._minute.percentiles[bisect_left(_BOUNDS_MS, took_ms)] += puts
        self.longest_ms = max(self.longest_ms, took_ms)

    def roll(self) -> None:
        """Start a new minute if the current one is over; to be called once per second."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._rolled_ns >= WINDOW_NS:
            self._rolled_ns = now_ns
            self._last, self._minute = self._minute, _Minute()

    def distribution(self) -> str:
        """Return the ranges of the last whole minute in RocketMQ's notation; `null` in the first minute."""
        if self._last is None:
            return "null"
        return "".join(f"{name}:{count} " for name, count in zip(_NAMES, self._last.ranges, strict=True))

    def percentile_ms(self, share: float) -> float:
        """Return the time within which `share` (0 to 1) of the last whole minute's puts were confirmed."""
        if self._last is None:
            return 0.0
        wanted = int(sum(self._last.percentiles) * share)
        passed, below_ms = 0, 0
        for bound_ms, count in zip(_BOUNDS_MS, self._last.percentiles, strict=False):
            if wanted <= passed + count:
                return below_ms + ((bound_ms - below_ms) * (wanted - passed) / count if count else 0)
            passed += count
            below_ms = bound_ms
        return float(_BOUNDS_MS[-1])

"""Rate of a load: the intended time of each send, and the search for the highest rate."""

from __future__ import annotations

FIRST_RATE = 10_000.0
SEARCH_STEP_S = 3.0
MAX_BEHIND = 1_000
"""Messages that may be unsent or unread at the end of a search step."""


class Pacer:
    """Gives each send its intended time; a late send does not delay those after it."""

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._next_s = now_s

    def next_s(self) -> float:
        """Return the intended time of the next send."""
        intended_s = self._next_s
        self._next_s += 1 / self.rate
        return intended_s

    def restart(self, rate: float, now_s: float) -> None:
        """Continue with `rate` from `now_s`; sends that were due before are dropped."""
        self.rate, self._next_s = rate, now_s


class RateSearch:
    """Searches the highest rate at which neither sends nor consumers fall behind."""

    def __init__(self) -> None:
        self.rate = FIRST_RATE
        self._ramp = 1.0
        """Share by which the rate grows after a step without falling behind, at most 1."""

    def step(self, seconds: float, sent: int, backlog_growth: int) -> float:
        """Return the next rate, from the sends and the growth of the backlog in the last `seconds`."""
        unsent = self.rate * seconds - sent
        if unsent > MAX_BEHIND or backlog_growth > MAX_BEHIND:
            achieved = min(sent, sent - backlog_growth) / seconds
            self.rate, self._ramp = max(achieved, 1.0), self._ramp / 2
        else:
            self.rate, self._ramp = self.rate * (1 + self._ramp), min(self._ramp * 1.25, 1.0)
        return self.rate

"""How long each request of a bench took, and the longest of them less what the host took meanwhile.

A virtual machine's processors stand still while the host runs others on them. A stall that the host made says
nothing about a broker: beside each long wait stands how much was stolen since just before it.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.bench.machine import stolen_s

LOOK_EVERY_S = 0.01
"""As exactly as the kernel counts what is stolen; a look takes some 40 µs, between two requests."""


class Waits:
    """Times are seconds of one clock; what they took is told in milliseconds."""

    def __init__(self, now_s: float, stolen: Callable[[], float] = stolen_s) -> None:
        self.taken_ms: list[float] = []
        self.longest_own_ms = 0.0
        """The longest less what was stolen of any processor meanwhile."""
        self._stolen = stolen
        self._stolen_s = stolen()
        self._looked_s = now_s

    def add(self, began_s: float, ended_s: float) -> bool:
        """A request has been answered; whether that took time of its own, which is nobody's wait."""
        taken_ms = (ended_s - began_s) * 1e3
        self.taken_ms.append(taken_ms)
        if taken_ms <= self.longest_own_ms and ended_s - self._looked_s < LOOK_EVERY_S:
            return False
        before_s, self._stolen_s, self._looked_s = self._stolen_s, self._stolen(), ended_s
        own_ms = taken_ms - (self._stolen_s - before_s) * 1e3
        self.longest_own_ms = max(self.longest_own_ms, own_ms)
        return True

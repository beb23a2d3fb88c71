"""BusyPoll: after a turn the loop looks for more for a moment before it sleeps.

Waking a processor that sleeps, and filling its caches again, takes longer than a whole request. A peer that
sends one message after another sends the next one within that moment, and gets its response in about half the
time. Other threads that are ready to run on this processor run first (sched_yield), so that a busy machine
loses nothing.
"""

from __future__ import annotations

import asyncio
import os

from store.clock import Clock

_NS_PER_US = 1_000


class BusyPoll:
    """Keeps one event loop awake for `for_us` microseconds after its last turn."""

    def __init__(self, clock: Clock, for_us: int) -> None:
        """Make a poll; 0 microseconds switch it off."""
        self._clock = clock
        self._for_ns = for_us * _NS_PER_US
        self._until_ns = 0
        self._looking = False

    def after_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Poll from now on: a turn has ended."""
        if not self._for_ns:
            return
        self._until_ns = self._clock.monotonic_ns() + self._for_ns
        if not self._looking:
            self._looking = True
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule the next look: a loop that has a callback to run polls its sockets without sleeping."""
        self._looking = self._clock.monotonic_ns() < self._until_ns
        if self._looking:
            os.sched_yield()
            loop.call_soon(self._look, loop)

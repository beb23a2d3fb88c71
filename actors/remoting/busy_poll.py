"""BusyPoll: after a turn the loop looks for more for a moment before it sleeps.

A processor that slept answers late: waking it, and filling its caches again, costs more than a whole request.
A peer that sends one message after another comes back within that moment, and is answered in about half the
time. Whoever else can run on this processor goes first at every look (sched_yield), so that a busy machine
loses nothing.
"""

from __future__ import annotations

import asyncio
import os

from store.clock import Clock

_NS_PER_US = 1_000


class BusyPoll:
    """Keeps one event loop awake for `for_us` microseconds after the last turn it was told of."""

    def __init__(self, clock: Clock, for_us: int) -> None:
        """0 microseconds: never."""
        self._clock = clock
        self._for_ns = for_us * _NS_PER_US
        self._until_ns = 0
        self._looking = False

    def after_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """A turn has ended: look on from now."""
        if not self._for_ns:
            return
        self._until_ns = self._clock.monotonic_ns() + self._for_ns
        if not self._looking:
            self._looking = True
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """With a call waiting for it, the loop asks the kernel for what has come, and does not sleep."""
        self._looking = self._clock.monotonic_ns() < self._until_ns
        if self._looking:
            os.sched_yield()
            loop.call_soon(self._look, loop)

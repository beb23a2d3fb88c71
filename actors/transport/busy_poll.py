"""BusyPoll: keep polling the sockets for a short time after a turn before the event loop sleeps.

Waking a sleeping processor and refilling its caches takes longer than a whole request. A peer that sends one
message after another sends the next one within that time, and gets its response in about half the time. The
loop calls sched_yield between polls, so that other threads that are ready to run on this processor run first.

If several requests arrive together, polling only takes time from the processors: peers with more than one
request in flight do not wait for a single response, and requests that arrive while the loop sleeps share the
next turn. If requests arrive much later, as from a gateway whose client has to send them first, polling takes
time from these processes. So the loop polls only while most requests arrive alone and within `_LATE_RATIO`
times the time of polling. Single late ones change nothing: a peer whose topic is on several brokers sends to
each of them in turn.
"""

from __future__ import annotations

import asyncio
import os

from store.common.clock import Clock

_NS_PER_US = 1_000
_SOON_MIN, _SOON_MAX = 2, 4
_LATE_RATIO = 3  # a request that finds the loop asleep arrives later, by the time of wake-ups


class BusyPoll:
    """Keeps an event loop polling without sleeping until it has been idle for `for_us` microseconds."""

    def __init__(self, clock: Clock, for_us: int) -> None:
        """Create a poller; `for_us` is in microseconds, 0 switches polling off."""
        self._clock = clock
        self._for_ns = for_us * _NS_PER_US
        self._until_ns = 0
        self._is_polling = False
        self._soon = 0  # requests that arrived alone and soon, less those that were late
        self._ended_ns = 0

    def stop(self) -> None:
        """Poll no more."""
        self._for_ns = 0

    def note_received(self, *, is_alone: bool) -> None:
        """Record that requests arrived; `is_alone` if it is one request, the first of this turn."""
        if self._for_ns:
            waited_ns = self._clock.monotonic_ns() - self._ended_ns
            if not is_alone:
                self._soon = 0
            elif waited_ns > _LATE_RATIO * self._for_ns:
                self._soon = max(self._soon - 1, 0)
            else:
                self._soon = min(self._soon + 1, _SOON_MAX)

    def after_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start polling if most requests arrive alone and soon; a turn has just ended."""
        if not self._for_ns:
            return
        self._ended_ns = self._clock.monotonic_ns()
        if self._soon < _SOON_MIN:
            return
        self._until_ns = self._ended_ns + self._for_ns
        if not self._is_polling:
            self._is_polling = True
            loop.call_soon(self._poll, loop)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule another callback until the time is over.

        A loop that has a ready callback polls its sockets without sleeping.
        """
        self._is_polling = self._clock.monotonic_ns() < self._until_ns
        if self._is_polling:
            os.sched_yield()
            loop.call_soon(self._poll, loop)

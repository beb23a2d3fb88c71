"""What a broker does once per turn of its loop: flush, call back, answer, dispatch, wake.

The flusher gets what is written; the store calls back those who wait for what is confirmed, their answers are
written, and it dispatches; pulls that waited for the messages go on (`Hub.resume`). Dispatch costs a write
for each queue, however few messages it brings, so while nobody waits for these messages several turns share
one; whoever reads calls `catch_up` first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.broker.loop.flusher import Flusher
from actors.broker.reading.hold import HeldPull, HeldPulls
from actors.broker.sending.put_times import PutTimes
from store.clock import Clock
from store.message_store import MessageStore

DISPATCH_LATER_NS = 2_000_000
DISPATCH_LATER_BYTES = 256 * 1024
# For whoever reads; a disk that is slower holds the loop no longer than this, and he sees it a little later.
CATCH_UP_S = 0.02
# A timer that fires a little early would find nothing expired and spin.
TIMER_SLACK_S = 0.001


class Turns:
    """The turns of one broker's loop."""

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        held: HeldPulls,
        clock: Clock,
        request_tick: Callable[[], None],
        write_out: Callable[[], None],
        resume: Callable[[Sequence[HeldPull]], None],
        put_times: PutTimes,
    ) -> None:
        """`request_tick` asks for another turn's end, `write_out` writes the answers that are ready, `resume`
        answers pulls at the turn's end; `put_times` is told how long puts take.
        """
        self._put_times = put_times
        self._store = store
        self._flusher = flusher
        self._held = held
        store.await_messages(held.queues)
        held.on_sooner(self._arm_hold_timer)
        self._clock = clock
        self._request_tick = request_tick
        self._write_out = write_out
        self._resume = resume
        self._hold_timer: asyncio.TimerHandle | None = None
        self._hold_timer_ns = 0
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._dispatched_ns = 0
        self._is_stopped = False

    def tick(self) -> None:
        """End a turn."""
        if self._is_stopped:
            return
        self._flusher.poke()  # first: the disk works while this thread dispatches
        times, positions = self._put_times, self._store.positions
        if times.puts:
            times.end_turn(positions.written)
        if self._may_dispatch_later():
            self._tick_store(dispatch=False)
        else:
            self._tick_store(before_dispatch=self._write_out)  # whoever sent goes on meanwhile
            if self._store.has_more_to_do:
                self._request_tick()
        if times.turns:
            times.settle(positions.confirmed)

    def catch_up(self) -> None:
        """Make readable what has been confirmed; of what another thread writes, what is soon there."""
        store = self._store
        if store.has_more_to_dispatch:
            store.await_units(CATCH_UP_S)
            self._tick_store()
            if store.await_units(CATCH_UP_S):
                self._tick_store(dispatch=False)

    async def catch_up_all(self) -> None:
        """Make readable all that has been confirmed by now; others go first after each step."""
        store = self._store
        confirmed = store.positions.confirmed
        while store.positions.dispatched < confirmed and store.has_more_to_dispatch:
            self.catch_up()
            await asyncio.sleep(0)

    def wake(self, topic: str) -> None:
        """Answer those who wait for messages of a topic: it is gone, or their offsets are others now."""
        self._resume(self._held.of_topic(topic))

    def stop(self) -> None:
        """Cancel the timers; what is still asked for a turn's end finds nothing done."""
        self._is_stopped = True
        for timer in (self._hold_timer, self._dispatch_timer):
            if timer is not None:
                timer.cancel()

    def _may_dispatch_later(self) -> bool:
        positions = self._store.positions
        behind_bytes = positions.confirmed - positions.dispatched
        if not 0 < behind_bytes < DISPATCH_LATER_BYTES or positions.awaited > positions.dispatched:
            return False
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._dispatched_ns >= DISPATCH_LATER_NS:
            self._dispatched_ns = now_ns
            return False
        if self._dispatch_timer is None:
            delay_s = DISPATCH_LATER_NS / 1e9
            self._dispatch_timer = asyncio.get_running_loop().call_later(delay_s, self._dispatch_is_due)
        return True

    def _dispatch_is_due(self) -> None:
        self._dispatch_timer = None
        self._dispatched_ns = 0
        self._request_tick()

    def _tick_store(
        self, *, dispatch: bool = True, before_dispatch: Callable[[], None] | None = None
    ) -> None:
        # With tens of thousands of queues to tell of, telling is work. Pulls are held on this thread only.
        tells = len(self._held) > 0
        arrivals = self._store.tick(
            dispatch=dispatch, tells=tells, leaves=True, before_dispatch=before_dispatch
        )
        waited_for = self._held.queues
        for arrival in arrivals:
            topic, queue_id = arrival.topic, arrival.queue_id
            if (topic, queue_id) in waited_for:
                woken = self._held.arrived(topic, queue_id, arrival.max_offset, arrival.tags_codes)
                if woken:
                    self._resume(woken)

    def _arm_hold_timer(self) -> None:
        deadline_ns = self._held.next_deadline_ns
        if self._is_stopped or deadline_ns is None:
            return
        if self._hold_timer is not None and self._hold_timer_ns <= deadline_ns:
            return
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        self._hold_timer_ns = deadline_ns
        delay_s = max(deadline_ns - self._clock.monotonic_ns(), 0) / 1e9 + TIMER_SLACK_S
        self._hold_timer = asyncio.get_running_loop().call_later(delay_s, self._expire_pulls)

    def _expire_pulls(self) -> None:
        self._hold_timer = None
        self._resume(self._held.expired(self._clock.monotonic_ns()))
        self._arm_hold_timer()

"""EndOfTurn: the steps of a turn that confirm and dispatch what was appended (see `Turn`).

    confirm   the store calls the waiting acknowledgements
    dispatch  passes the confirmed records to the consume queues and the index, resumes the held pulls and the
              reads that wait for these messages (`Hub.resume`), and does the upkeep of the store

While a flush is in flight, a turn without newly confirmed records dispatches nothing: the turn at the end of
the flush does, and the upkeep of the store.

Dispatch writes to each queue that has new messages, however few. If no pull waits for them, one dispatch
serves several turns. A reader that must see all messages first calls `catch_up`; if another thread is still
writing consume-queue units, it waits (`when_caught_up`). So does it while the end of the log is not known
(`LogEnd`): what is confirmed then is less than consumers may have seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from actors.broker.core.loop.flusher import Flusher
from actors.broker.core.loop.log_end import LogEnd
from actors.broker.core.loop.wait_registry import WaitRegistry, shutting_down
from actors.broker.core.put_times import PutTimes
from actors.transport.hub import Hub
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.message_store import Arrival, MessageStore

# A dispatch costs as much as two turns with 20 sends: at 2 ms it took 15 % of the CPU time of small sends.
DISPATCH_LATER_NS = 10_000_000
DISPATCH_LATER_BYTES = 256 * 1024
END_WAIT_MS = 2_000
"""How long a reader waits until the end of the log is known. RocketMQ's clients wait 3 s for a response."""
# Added to timers: one that fires too early would find no expired pull and be set again immediately.
TIMER_SLACK_S = 0.001


class _Reader(NamedTuple):
    """A request that waits until the log is dispatched up to `position`."""

    position: int
    since_ns: int
    caught_up: asyncio.Future[None]

    def release(self, error: Refused | None = None) -> None:
        if self.caught_up.done():  # the waiting task was cancelled
            return
        if error is None:
            self.caught_up.set_result(None)
        else:
            self.caught_up.set_exception(error)


class EndOfTurn:
    """Confirms and dispatches at the end of the turns of one broker's loop."""

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        held: WaitRegistry[Arrival],
        clock: Clock,
        hub: Hub,
        put_times: PutTimes,
        log_end: LogEnd,
        catch_up_timeout_ms: int,
    ) -> None:
        """Create the object.

        Args:
            store: confirms and dispatches.
            flusher: flushes the store.
            held: the held pulls.
            clock: for time-outs and measurements.
            hub: runs the turns, and resumes held pulls.
            put_times: counts the time from append to confirmation.
            log_end: reports whether the end of the log is known.
            catch_up_timeout_ms: how long a reader waits for dispatch before it is refused.
        """
        self._put_times = put_times
        self._log_end = log_end
        self._store = store
        self._flusher = flusher
        self._held = held
        store.await_messages(held.keys)
        held.on_earlier_deadline(self._arm_hold_timer)
        self._clock = clock
        self._hub = hub
        self._hold_timer: asyncio.TimerHandle | None = None
        self._hold_timer_ns = 0
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._dispatched_ns = 0
        self._flushes = 0  # flushes before the last turn that was complete
        self._readers: deque[_Reader] = deque()
        self._catch_up_timeout_ms = catch_up_timeout_ms
        self.written = 0
        """The end of the log at the last `confirm`."""
        self._is_stopped = False

    @property
    def waiting(self) -> int:
        """Number of reads that are waiting for the dispatch of confirmed messages."""
        return len(self._readers)

    def confirm(self) -> None:
        """Confirm what was appended; the store calls the waiting acknowledgements."""
        times, positions = self._put_times, self._store.positions
        self.written = positions.written
        if times.puts:
            times.end_turn(positions.written)
        self._store.confirm()
        if times.turns and times.turns[0].end <= positions.confirmed:
            times.count_confirmed(positions.confirmed)

    def dispatch(self) -> None:
        """Dispatch what was confirmed, and do the upkeep of the store, unless a later turn does it."""
        flusher, positions = self._flusher, self._store.positions
        has_work = positions.dispatched < positions.confirmed or bool(self._readers)
        if not has_work and flusher.flushes == self._flushes and flusher.is_flushing:
            return  # the end of the flush brings the next turn
        self._flushes = flusher.flushes
        if self._may_dispatch_later():
            return
        if self._store.has_more_to_dispatch:
            self._hub.flush()  # senders do not wait for the rest of the dispatch
        self._advance_store()
        if self._store.has_more_to_do:
            self._hub.request_tick()
        if self._readers:
            self._release_readers()

    def catch_up(self) -> bool:
        """Dispatch one step if needed; return True if all messages that anyone has seen can be read now."""
        positions = self._store.positions
        if positions.dispatched >= positions.confirmed:
            return positions.is_end_known
        if self._store.has_more_to_dispatch and not self._is_stopped:
            self._advance_store()
        return positions.dispatched >= positions.confirmed and positions.is_end_known

    def when_caught_up(self) -> asyncio.Future[None]:
        """Return a future that is done when all messages confirmed by now can be read.

        To be used if `catch_up` has returned False. The future raises Refused if dispatch fails, if it or the
        confirmation of the log takes longer than its time-out, or if the broker stops.
        """
        caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        positions = self._store.positions
        position = positions.confirmed + positions.hidden_bytes
        reader = _Reader(position, self._clock.monotonic_ns(), caught_up)
        if self._is_stopped:
            reader.release(shutting_down())
        elif positions.is_end_known and not self._store.has_more_to_dispatch:
            reader.release(self._dispatch_error())
        else:
            self._readers.append(reader)
            self._hub.request_tick()
        return caught_up

    def wake(self, topic: str) -> None:
        """Respond to the held pulls of a topic, because it was deleted or its offsets were reset."""
        self._hub.resume(self._held.of_topic(topic))

    def stop(self) -> None:
        """Cancel the timers and refuse the waiting readers."""
        self._is_stopped = True
        self._end_waits(shutting_down())
        for timer in (self._hold_timer, self._dispatch_timer):
            if timer is not None:
                timer.cancel()

    def _release_readers(self) -> None:
        store, readers = self._store, self._readers
        dispatched = store.positions.dispatched
        while readers and readers[0].position <= dispatched:
            readers.popleft().release()
        is_known, limit_ms = self._log_end.is_known, self._catch_up_timeout_ms
        if is_known and not store.has_more_to_dispatch:
            self._end_waits(self._dispatch_error())
        if not is_known:
            limit_ms = min(limit_ms, END_WAIT_MS)
        while readers and self._age_ms(readers[0]) >= limit_ms:
            reader = readers.popleft()
            reader.release(self._too_late(reader) if is_known else self._log_end.refusal())

    def _end_waits(self, error: Refused | None) -> None:
        readers, self._readers = self._readers, deque()
        for reader in readers:
            reader.release(error)

    def _dispatch_error(self) -> Refused | None:
        """Return why dispatch stopped before `confirmed`; None if the rest is only a part of a record."""
        refusal = self._store.dispatch_refusal
        if refusal is None:
            return None
        return Refused(ResponseCode.SYSTEM_ERROR, f"the newest messages cannot be read yet: {refusal}")

    def _too_late(self, reader: _Reader) -> Refused:
        behind_bytes = reader.position - self._store.positions.dispatched
        return Refused(
            ResponseCode.SYSTEM_BUSY,
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {self._age_ms(reader)}ms, size of queue: {len(self._readers) + 1}: the disk "
            f"writes consume queues too slowly, {behind_bytes:,} bytes of the log are not dispatched yet "
            f"(wait_in_pull_queue_ms {self._catch_up_timeout_ms})",
        )

    def _age_ms(self, reader: _Reader) -> int:
        return (self._clock.monotonic_ns() - reader.since_ns) // NS_PER_MS

    def _may_dispatch_later(self) -> bool:
        if self._readers:
            return False
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
        self._hub.request_tick()

    def _advance_store(self) -> None:
        for arrival in self._store.step():
            woken = self._held.arrived((arrival.topic, arrival.queue_id), arrival)
            if woken:
                self._hub.resume(woken)

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
        self._hub.resume(self._held.expired())
        self._arm_hold_timer()

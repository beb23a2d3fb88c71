"""Claims: the messages that were popped and are not acked yet. A state machine without I/O.

    pop ──► claimed ──ack────────────────────────────────────────► done
              │  └──change (a new claim of this message)──────────► done
              └──invisible time over ──► due ──revived (the caller has stored it for a retry)──► done

A claim lives in memory only, so a pop and its ack cost no record. The commit offset of a queue is the first
message that is neither done nor safe: after a crash the group pops from there again, so a message may be
delivered early, but none is lost. A claim that is held for STAY_MS is made safe: the caller stores it as a
check point, and from then on records its acks too.

Due times are measured by the monotonic clock, so a step of the wall clock changes none of them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

from actors.bounds import AtLimit, Bound, Use
from actors.broker.broker_settings import BrokerSettings
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.message.pop_records import CheckPoint, ClaimKey

STAY_MS = 10_000
"""A claim older than this is stored as a check point, as in RocketMQ (popCkStayBufferTime)."""
STORE_AHEAD_MS = 3_000
"""A claim that is due sooner than this is not stored: it is almost over."""
DONE = Bound(
    "done_claims", 4096, AtLimit.EVICT, "Claims that are done but not due yet, above the number of open ones."
)
IDLE_MS = 300_000
"""The state of a queue without claims is dropped after this time."""


def check_invisible_ms(invisible_ms: int, settings: BrokerSettings) -> None:
    """Raise Refused unless a claim may last `invisible_ms`."""
    longest_ms = settings.timer_max_delay_s * 1000
    if not 0 < invisible_ms <= longest_ms:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {invisible_ms} ms: it must be 1 to {longest_ms} "
            "(timer_max_delay_s of the broker)",
        )


class ClaimQueue(NamedTuple):
    """A queue as one consumer group pops it."""

    topic: str
    group: str
    queue_id: int


class Claim:
    """The open messages of one pop from one queue. Only `Claims` changes it."""

    __slots__ = (
        "born_ns",
        "due_ns",
        "invisible_ms",
        "is_dropped",
        "is_stored",
        "key",
        "open",
        "revive_queue",
        "unrecorded",
    )

    def __init__(
        self, key: ClaimKey, offsets: Sequence[int], invisible_ms: int, revive_queue: int, now_ns: int
    ) -> None:
        self.key = key
        self.open: dict[int, None] = dict.fromkeys(offsets)
        """The offsets that are not done, ascending."""
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.born_ns = now_ns
        self.due_ns = now_ns + invisible_ms * NS_PER_MS
        self.is_stored = False
        self.is_dropped = False
        self.unrecorded: list[int] = []
        """The offsets that are done, but not yet acked in the revive topic, of a stored claim."""

    @property
    def queue(self) -> ClaimQueue:
        """The queue of the messages."""
        return ClaimQueue(*self.key[:3])

    def check_point(self) -> CheckPoint:
        """Return the claim as a check point of its open messages."""
        return CheckPoint(self.key, self.invisible_ms, tuple(self.open))


class _QueueState:
    """The claims of one queue of one group."""

    __slots__ = ("claims", "cursor", "unsafe", "used_ns")

    def __init__(self, cursor: int, now_ns: int) -> None:
        self.cursor = cursor
        """The offset of the next pop."""
        self.claims: dict[tuple[int, int], Claim] = {}
        """By start offset and pop time."""
        self.unsafe: OrderedDict[int, Claim] = OrderedDict()
        """The open messages that exist only in memory, by offset, ascending."""
        self.used_ns = now_ns


class Progress(Protocol):
    """What follows from the claims of a queue."""

    def commit(self, queue: ClaimQueue, offset: int) -> None:
        """Note the commit offset of a queue, which may have changed."""

    def done(self, queue: ClaimQueue, offset: int) -> None:
        """Note that a message after the commit offset is done."""

    def skip(self, queue: ClaimQueue, offset: int) -> None:
        """Note that a message is acked that will be read by a later pop."""

    def count_safe(self, queue: ClaimQueue, change: int) -> None:
        """Note that `change` more (or fewer) messages are open and safe as check points."""


class Claims:
    """All claims of one broker."""

    def __init__(self, clock: Clock, progress: Progress) -> None:
        """Create the object; `progress` gets the commit offsets."""
        self._clock = clock
        self._progress = progress
        self._queues: dict[ClaimQueue, _QueueState] = {}
        self._due: list[tuple[int, int, Claim]] = []
        self._numbers = count()
        self._young: deque[Claim] = deque()
        self._unrecorded: dict[Claim, None] = {}
        self._open_claims = 0
        self.in_flight = 0
        """Number of open messages."""

    def next_offset(self, queue: ClaimQueue, committed: int) -> int:
        """Return the offset of the next pop: a higher `committed` is another consumer's, or a tool's."""
        state = self._queues.get(queue)
        return committed if state is None else max(state.cursor, committed)

    def claim(
        self,
        queue: ClaimQueue,
        offsets: Sequence[int],
        next_offset: int,
        start_offset: int,
        pop_ms: int,
        invisible_ms: int,
        revive_queue: int,
    ) -> Claim | None:
        """Claim messages of a queue, and let the next pop begin at `next_offset`.

        Returns None, and claims nothing, if a claim with this start offset and pop time exists.
        """
        now_ns = self._clock.monotonic_ns()
        state = self._state(queue, start_offset)
        if (start_offset, pop_ms) in state.claims:
            return None
        key = ClaimKey(*queue, start_offset, pop_ms)
        claim = Claim(key, offsets, invisible_ms, revive_queue, now_ns)
        self._add(state, claim)
        for offset in offsets:
            state.unsafe[offset] = claim
        state.cursor = next_offset
        self._commit(queue, state)
        return claim

    def skip(self, queue: ClaimQueue, next_offset: int) -> None:
        """Let the next pop begin at `next_offset`: the filter rejects all messages before it."""
        state = self._state(queue, next_offset)
        state.cursor = next_offset
        self._commit(queue, state)

    def find(self, key: ClaimKey) -> Claim | None:
        """Return a claim with open messages."""
        state = self._queues.get(ClaimQueue(*key[:3]))
        return None if state is None else state.claims.get((key.start_offset, key.pop_ms))

    def finish(self, claim: Claim, offset: int) -> bool:
        """Note that a message of the claim is acked or revived. Return False if it is not open."""
        if claim.is_dropped or offset not in claim.open:
            return False
        del claim.open[offset]
        self.in_flight -= 1
        queue = claim.queue
        if claim.is_stored:
            claim.unrecorded.append(offset)
            self._unrecorded[claim] = None
            self._progress.count_safe(queue, -1)
        state = self._queues[queue]
        state.used_ns = self._clock.monotonic_ns()
        if not claim.open:
            del state.claims[claim.key.start_offset, claim.key.pop_ms]
            self._open_claims -= 1
        if state.unsafe.get(offset) is claim:
            del state.unsafe[offset]
            if self._commit(queue, state) <= offset:
                self._progress.done(queue, offset)
        return True

    def finish_earlier(self, queue: ClaimQueue, offset: int, committed: int) -> None:
        """Note an ack of a message that an earlier process handed out, and that may be popped again here."""
        state = self._queues.get(queue)
        claim = None if state is None else state.unsafe.get(offset)
        if claim is not None:
            self.finish(claim, offset)
        elif offset >= self.next_offset(queue, committed):
            self._progress.skip(queue, offset)

    def change(self, claim: Claim, offset: int, pop_ms: int, invisible_ms: int) -> Claim:
        """Move an open message to a new claim, which begins now, and return that.

        `pop_ms` must be free (`free_time`). If `claim` is stored, the new one must be stored too (`stored`).
        """
        queue = claim.queue
        state = self._queues[queue]
        key = ClaimKey(*queue, offset, pop_ms)
        now_ns = self._clock.monotonic_ns()
        changed = Claim(key, (offset,), invisible_ms, claim.revive_queue, now_ns)
        changed.born_ns = claim.born_ns  # a message that is extended again and again is stored at last
        self._add(state, changed)
        if state.unsafe.get(offset) is claim:
            state.unsafe[offset] = changed  # keeps its place
        self.finish(claim, offset)
        return changed

    def free_time(self, queue: ClaimQueue, start_offset: int, pop_ms: int) -> int:
        """Return the first pop time from `pop_ms` on that no claim with this start offset has."""
        state = self._queues.get(queue)
        while state is not None and (start_offset, pop_ms) in state.claims:
            pop_ms += 1
        return pop_ms

    def adopt(
        self, key: ClaimKey, offsets: Sequence[int], invisible_ms: int, revive_queue: int, cursor: int
    ) -> Claim:
        """Return a claim of messages before `cursor`, which the caller has stored, beginning now."""
        claim = Claim(key, offsets, invisible_ms, revive_queue, self._clock.monotonic_ns())
        claim.is_stored = True
        self._add(self._state(claim.queue, cursor), claim)
        self._progress.count_safe(claim.queue, len(claim.open))
        return claim

    def left_ms(self) -> int | None:
        """Return the time until a claim may be due; None without one."""
        return (self._due[0][0] - self._clock.monotonic_ns()) // NS_PER_MS if self._due else None

    def take_due(self) -> list[Claim]:
        """Return the claims whose invisible time is over; each is returned once."""
        now_ns, due = self._clock.monotonic_ns(), self._due
        taken = []
        while due and due[0][0] <= now_ns:
            claim = heapq.heappop(due)[2]
            if claim.open and not claim.is_dropped:
                taken.append(claim)
        return taken

    def put_back(self, claim: Claim, pause_ms: int) -> None:
        """Return a due claim whose messages could not be stored for a retry; it is due again later."""
        claim.due_ns = self._clock.monotonic_ns() + pause_ms * NS_PER_MS
        heapq.heappush(self._due, (claim.due_ns, next(self._numbers), claim))

    def take_old(self) -> list[Claim]:
        """Return the claims that the caller should store now, each once."""
        now_ns, young = self._clock.monotonic_ns(), self._young
        taken = []
        while young and now_ns - young[0].born_ns >= STAY_MS * NS_PER_MS:
            claim = young.popleft()
            is_over = claim.due_ns - now_ns < STORE_AHEAD_MS * NS_PER_MS
            if claim.open and not claim.is_stored and not claim.is_dropped and not is_over:
                taken.append(claim)
        return taken

    def take_all(self) -> list[Claim]:
        """Return all claims that exist only in memory, because the broker stops."""
        self._young.clear()
        states = self._queues.values()
        return [each for state in states for each in state.claims.values() if not each.is_stored]

    def stored(self, claim: Claim, recorded: Sequence[int]) -> None:
        """Note that the claim is safe as a check point of the offsets `recorded`."""
        claim.is_stored = True
        if claim.is_dropped:
            return
        done = [offset for offset in recorded if offset not in claim.open]
        if done:
            claim.unrecorded += done
            self._unrecorded[claim] = None
        queue = claim.queue
        state = self._queues[queue]
        self._progress.count_safe(queue, len(claim.open))
        for offset in claim.open:
            if state.unsafe.get(offset) is claim:
                del state.unsafe[offset]
        self._commit(queue, state)

    def take_unrecorded(self) -> list[tuple[Claim, list[int]]]:
        """Return the stored claims whose acks the caller should record now, with the acked offsets."""
        taken = []
        for claim in self._unrecorded:
            taken.append((claim, claim.unrecorded))
            claim.unrecorded = []
        self._unrecorded.clear()
        return taken

    def put_back_unrecorded(self, claim: Claim, offsets: list[int]) -> None:
        """Return the acks of a stored claim that could not be recorded."""
        claim.unrecorded = offsets + claim.unrecorded
        self._unrecorded[claim] = None

    def reset(self, queue: ClaimQueue, offset: int) -> None:
        """Drop the claims of a queue, because an administrator has moved the group to `offset`."""
        self.forget(queue)
        self._queues[queue] = _QueueState(offset, self._clock.monotonic_ns())

    def forget(self, queue: ClaimQueue) -> None:
        """Drop the claims of a queue that was deleted, or whose group was."""
        state = self._queues.pop(queue, None)
        if state is None:
            return
        for claim in state.claims.values():
            self.in_flight -= len(claim.open)
            self._open_claims -= 1
            claim.is_dropped = True
            if claim.is_stored:
                self._progress.count_safe(queue, -len(claim.open))
            self._unrecorded.pop(claim, None)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (DONE.use(lambda: max(self._done_above_open(), 0)),)

    def clear(self) -> None:
        """Drop all claims, because the broker has stopped, or is no longer the master."""
        for queue in list(self._queues):
            self.forget(queue)
        self._due.clear()
        self._young.clear()

    def expire(self) -> None:
        """Drop the state of queues that have no claims and were not popped for IDLE_MS."""
        before_ns = self._clock.monotonic_ns() - IDLE_MS * NS_PER_MS
        for queue in [queue for queue, state in self._queues.items() if state.used_ns < before_ns]:
            if not self._queues[queue].claims:
                del self._queues[queue]

    def _state(self, queue: ClaimQueue, offset: int) -> _QueueState:
        now_ns = self._clock.monotonic_ns()
        state = self._queues.get(queue)
        if state is None:
            state = self._queues[queue] = _QueueState(offset, now_ns)
        state.used_ns = now_ns
        return state

    def _add(self, state: _QueueState, claim: Claim) -> None:
        state.claims[claim.key.start_offset, claim.key.pop_ms] = claim
        self.in_flight += len(claim.open)
        self._open_claims += 1
        heapq.heappush(self._due, (claim.due_ns, next(self._numbers), claim))
        self._young.append(claim)
        if self._done_above_open() > DONE.limit:
            self._remove_done()

    def _done_above_open(self) -> int:
        return len(self._due) - 2 * self._open_claims

    def _remove_done(self) -> None:
        """Remove the claims that were done long before they are due."""
        self._due = [each for each in self._due if each[2].open and not each[2].is_dropped]
        heapq.heapify(self._due)
        self._young = deque(each for each in self._young if each.open and not each.is_dropped)

    def _commit(self, queue: ClaimQueue, state: _QueueState) -> int:
        """Report the commit offset, and return it."""
        offset = next(iter(state.unsafe)) if state.unsafe else state.cursor
        self._progress.commit(queue, offset)
        return offset

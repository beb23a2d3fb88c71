"""Which queues a member of a consumer group holds, as its rebalancer tells it. Pure.

    granted ─→ held ─ revoke ─→ leaving ─ released() ─→ gone
                 └── lease over: suspended until the next answer; what it does not grant is gone at once

A member asks with the queues it holds; the answer names what is granted to it and what it must let go. It
lets go by stopping, finishing, committing, and then no longer naming the queue. Only after that may another
member get it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from actors.remoting.bodies.groups import GrantedQueue, SyncGroupReply
from store.message.message_queue import MessageQueue


class Holding(Enum):
    """Where a queue stands in its life with this member."""

    HELD = "held"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Changes:
    """What the consumer must do now: begin on `started`, let go of `leaving` (then call `released`), and drop
    `lost`, which others may have already.
    """

    started: tuple[GrantedQueue, ...] = ()
    leaving: tuple[MessageQueue, ...] = ()
    lost: tuple[MessageQueue, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.started or self.leaving or self.lost)


@dataclass(slots=True)
class _Held:
    generation: int
    holding: Holding = Holding.HELD


@dataclass(slots=True)
class Membership:
    """The queues of one member. Times are monotonic milliseconds, given by the caller."""

    lease_ms: int
    generation: int = 0
    members: tuple[str, ...] = ()
    _queues: dict[MessageQueue, _Held] = field(default_factory=dict)
    _renewed_at_ms: int | None = None

    def owned(self) -> list[GrantedQueue]:
        """What the next request must name: everything held, and what is being let go but not released."""
        return [GrantedQueue(queue, held.generation) for queue, held in sorted(self._queues.items())]

    def held(self, now_ms: int) -> list[MessageQueue]:
        """Return the queues to consume from: none once the lease is over."""
        if self.lease_left_ms(now_ms) <= 0:
            return []
        return sorted(queue for queue, held in self._queues.items() if held.holding is Holding.HELD)

    def generation_of(self, queue: MessageQueue) -> int | None:
        """Under which generation this queue's offsets are committed, None when it is not ours."""
        held = self._queues.get(queue)
        return None if held is None else held.generation

    def apply(self, reply: SyncGroupReply, asked_at_ms: int, now_ms: int | None = None) -> Changes:
        """Take an answer to the request made at `asked_at_ms`, now (as soon as asked unless given). An answer
        older than what we know changes nothing.

        What it does not grant leaves in order while the lease runs; where the lease was over, it is lost.

        The lease runs from when we asked: the rebalancer counts it from later, so ours ends first.
        """
        if reply.generation < self.generation:
            return Changes()
        now_ms = asked_at_ms if now_ms is None else now_ms
        was_over = self._renewed_at_ms is not None and self.lease_left_ms(now_ms) <= 0
        self.generation = reply.generation
        self.members = tuple(reply.members)
        self.lease_ms = reply.lease_ms or self.lease_ms  # the rebalancer may bound what was asked for
        self._renewed_at_ms = (
            asked_at_ms if self._renewed_at_ms is None else max(asked_at_ms, self._renewed_at_ms)
        )
        granted = {grant.queue: grant for grant in reply.granted}
        started = []
        for queue, grant in sorted(granted.items()):
            held = self._queues.get(queue)
            if held is None:
                self._queues[queue] = _Held(grant.generation)
                started.append(grant)
            elif held.holding is Holding.HELD:
                held.generation = max(held.generation, grant.generation)
        revoked = {revoke.queue for revoke in reply.revoke}
        not_ours = [queue for queue in self._queues if queue not in granted or queue in revoked]
        if was_over:
            for queue in not_ours:
                del self._queues[queue]
            return Changes(tuple(started), (), tuple(sorted(not_ours)))
        return Changes(tuple(started), self._leave(not_ours))

    def _leave(self, queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        left = []
        for queue in sorted(queues):
            held = self._queues[queue]
            if held.holding is Holding.HELD:
                held.holding = Holding.LEAVING
                left.append(queue)
        return tuple(left)

    def leave_all(self) -> tuple[MessageQueue, ...]:
        """Begin to let go of everything (close, or a lost subscription)."""
        return self._leave(list(self._queues))

    def fenced(self, queue: MessageQueue) -> bool:
        """A commit of `queue` was refused: another member has it. Forget it; say whether it was ours."""
        return self._queues.pop(queue, None) is not None

    def released(self, queue: MessageQueue) -> None:
        """The queue is finished and committed: the next request no longer names it."""
        self._queues.pop(queue, None)

    def lease_left_ms(self, now_ms: int) -> int:
        """How long the queues are still surely ours; ≤ 0 means: fetch nothing until the next answer."""
        if self._renewed_at_ms is None:
            return 0
        return self._renewed_at_ms + self.lease_ms - now_ms

    def keep(self, now_ms: int) -> None:
        """A broker said that the rebalancer is down: nobody can give our queues away, so the lease goes
        on.
        """
        if self._renewed_at_ms is not None:
            self._renewed_at_ms = max(self._renewed_at_ms, now_ms)

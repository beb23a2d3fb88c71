"""Membership: the queues that a group member holds, as assigned by the rebalancer. No I/O, no clock.

    assigned ─→ held ─ revoke ─→ leaving ─ released() ─→ removed
                 └── lease expired: consumption is suspended until the next response;
                     queues that this response does not grant are removed immediately

Each sync request lists the queues that the member holds. The response lists the queues assigned to the member
and the queues it must release. To release a queue, the member stops fetching, finishes the messages in
progress, commits, and omits the queue from its next request. Only then may another member get the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from actors.wire.bodies.groups import AssignedQueue, SyncGroupReply
from store.message.message_queue import MessageQueue


class Holding(Enum):
    """State of a queue of this member: held, or being released."""

    HELD = "held"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """Actions for the consumer after a sync response.

    The consumer starts `started`, finishes and releases `leaving` (and then calls `released`), and drops
    `lost`, because other members may already hold those queues.
    """

    started: tuple[AssignedQueue, ...] = ()
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
    """The queues and the lease of one group member. The caller passes in times, in monotonic milliseconds."""

    lease_ms: int
    generation: int = 0
    members: tuple[str, ...] = ()
    _queues: dict[MessageQueue, _Held] = field(default_factory=dict)
    _renewed_at_ms: int | None = None

    def owned(self) -> list[AssignedQueue]:
        """Return the queues to list in the next request: held ones and those not released yet."""
        return [AssignedQueue(queue, held.generation) for queue, held in sorted(self._queues.items())]

    def held(self, now_ms: int) -> list[MessageQueue]:
        """Return the queues to consume, sorted. The list is empty after the lease expires."""
        if self.lease_left_ms(now_ms) <= 0:
            return []
        return sorted(queue for queue, held in self._queues.items() if held.holding is Holding.HELD)

    def generation_of(self, queue: MessageQueue) -> int | None:
        """Return the generation for commits of `queue`, or None if this member does not hold the queue."""
        held = self._queues.get(queue)
        return None if held is None else held.generation

    def apply(self, reply: SyncGroupReply, requested_at_ms: int, now_ms: int | None = None) -> GroupChanges:
        """Apply a sync response and return the actions that follow from it.

        A response of an older generation is ignored. Queues that the response does not grant are released
        while the lease is valid; if the lease had expired, they are lost.

        Args:
            reply: The response.
            requested_at_ms: The time at which the request was sent. The lease is counted from this time.
            now_ms: The current time; `requested_at_ms` by default.
        """
        if reply.generation < self.generation:
            return GroupChanges()
        now_ms = requested_at_ms if now_ms is None else now_ms
        was_over = self._renewed_at_ms is not None and self.lease_left_ms(now_ms) <= 0
        self.generation = reply.generation
        self.members = tuple(reply.members)
        self.lease_ms = reply.lease_ms or self.lease_ms  # the rebalancer may limit the requested lease
        # The rebalancer counts the lease from a later time, so this member's lease always expires first.
        self._renewed_at_ms = (
            requested_at_ms if self._renewed_at_ms is None else max(requested_at_ms, self._renewed_at_ms)
        )
        assigned = {grant.queue: grant for grant in reply.assigned}
        started = []
        for queue, grant in sorted(assigned.items()):
            held = self._queues.get(queue)
            if held is None:
                self._queues[queue] = _Held(grant.generation)
                started.append(grant)
            elif held.holding is Holding.HELD:
                held.generation = max(held.generation, grant.generation)
        revoked = {revoke.queue for revoke in reply.revoke}
        not_ours = [queue for queue in self._queues if queue not in assigned or queue in revoked]
        if was_over:
            for queue in not_ours:
                del self._queues[queue]
            return GroupChanges(tuple(started), (), tuple(sorted(not_ours)))
        return GroupChanges(tuple(started), self._leave(not_ours))

    def _leave(self, queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        left = []
        for queue in sorted(queues):
            held = self._queues[queue]
            if held.holding is Holding.HELD:
                held.holding = Holding.LEAVING
                left.append(queue)
        return tuple(left)

    def leave_all(self) -> tuple[MessageQueue, ...]:
        """Start to release all queues and return those that were held, sorted."""
        return self._leave(list(self._queues))

    def fenced(self, queue: MessageQueue) -> bool:
        """Remove `queue` after a fenced commit: another member holds it. Return True if it was present."""
        return self._queues.pop(queue, None) is not None

    def released(self, queue: MessageQueue) -> None:
        """Remove a queue that is finished and committed. The next request no longer lists it."""
        self._queues.pop(queue, None)

    def lease_left_ms(self, now_ms: int) -> int:
        """Return the remaining time of the lease in ms. At ≤ 0 the member must not consume."""
        if self._renewed_at_ms is None:
            return 0
        return self._renewed_at_ms + self.lease_ms - now_ms

    def extend_lease(self, now_ms: int) -> None:
        """Restart the lease at `now_ms` although no sync succeeded.

        This is safe while the rebalancer is down, because only the rebalancer can assign the queues of this
        member to another one.
        """
        if self._renewed_at_ms is not None:
            self._renewed_at_ms = max(self._renewed_at_ms, now_ms)

"""OrderedQueueWork: one queue of a consumer that consumes in order.

    take ─→ current ─ success, or dead letter ─→ next offer
              └ failure ─ back-off ─→ current again; the queue waits

At most one task of the queue exists at a time. A task that failed stays the current one until it succeeds or
its messages are dead letters, so no later message overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.client.consumer.queue_work import QueueWork, Task

NEVER_MS = 1 << 62


@dataclass(eq=False, kw_only=True)  # with slots=True, super() would not work
class OrderedQueueWork(QueueWork):
    """State of a queue whose messages the listener gets one call after another.

    Attributes:
        offer: Offers the queue to the listeners again. Called from any thread.
        locked_until_ms: The listener is not called after this time, in monotonic ms.
        is_lock_lost: True if another member holds the lock of the queue.
    """

    offer: Callable[[QueueWork | Task], None]
    locked_until_ms: int = NEVER_MS
    is_lock_lost: bool = False
    _current: Task | None = None

    @property
    def may_commit(self) -> bool:
        """Return False after the lock was lost: the new owner of the queue commits."""
        return not self.is_lock_lost

    def renew(self, locked_ms: int, until_ms: int) -> tuple[bool, list[Task]]:
        """Extend the lock. Return whether the caller must offer this queue, and the tasks to offer."""
        with self.lock:
            self.locked_ms, self.locked_until_ms = locked_ms, until_ms
            if self.is_paused:
                return False, []
            tasks, self.paused_tasks = self.paused_tasks, []
            return self._offer(), tasks

    def overdue(self, started_before_ms: int) -> list[Task]:
        """Return no task: messages that were sent back to the broker would be consumed out of order."""
        return []

    def settle(self, task: Task, *, succeeded: bool) -> bool:
        """Record the result of a listener call, and offer the next messages after a success."""
        is_due = super().settle(task, succeeded=succeeded)
        if succeeded:
            self._advance(task)
        return is_due

    def finish(self, task: Task) -> None:
        """Mark the messages of `task` as consumed, and offer the next ones."""
        super().finish(task)
        self._advance(task)

    def _advance(self, task: Task) -> None:
        with self.lock:
            if self._current is not task:
                return
            self._current = None
            is_due = self._offer()
        if is_due:
            self.offer(self)

    def _may_run(self, now_ms: int) -> bool:
        return not self.is_paused and now_ms < self.locked_until_ms

    def _may_take(self) -> bool:
        return self._current is None

    def _began(self, task: Task) -> None:
        self._current = task

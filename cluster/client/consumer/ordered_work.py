"""OrderedQueueWork: the state of one queue of a consumer that consumes in order.

    take ─→ current ─ success, or dead letter ─→ next offer
              └ failure ─ back-off ─→ current again; the queue waits

A queue has at most one task at a time. A failed task remains the current task until it succeeds or its
messages are sent to the dead-letter topic. No later message is consumed before that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.client.consumer.queue_work import QueueWork, Task

NEVER_MS = 1 << 62


@dataclass(eq=False, kw_only=True)  # with slots=True, super() would not work
class OrderedQueueWork(QueueWork):
    """State of a queue for which only one listener call runs at a time.

    Attributes:
        offer: Puts the queue or a task into the ready list of the listener threads. Thread-safe.
        locked_until_ms: Time until which the lock of the queue is valid, in monotonic ms. The listener is not
            called after it.
        is_lock_lost: True after another member of the group has locked the queue.
    """

    offer: Callable[[QueueWork | Task], None]
    locked_until_ms: int = NEVER_MS
    is_lock_lost: bool = False
    _current: Task | None = None

    @property
    def may_commit(self) -> bool:
        """Return False after the lock was lost, because then the new owner of the queue commits."""
        return not self.is_lock_lost

    def renew(self, locked_ms: int, until_ms: int) -> tuple[bool, list[Task]]:
        """Record a renewal of the lock, and resume work that was paused because the lock had expired.

        Args:
            locked_ms: Time of the renewal request, in monotonic ms.
            until_ms: End of the lock's validity, in monotonic ms.

        Returns:
            True if the caller must offer this queue to the listeners, and the paused tasks to offer to them.
        """
        with self.lock:
            self.locked_ms, self.locked_until_ms = locked_ms, until_ms
            if self.is_paused:
                return False, []
            tasks, self.paused_tasks = self.paused_tasks, []
            return self._offer(), tasks

    def overdue(self, started_before_ms: int) -> list[Task]:
        """Return an empty list: a task that runs too long must not be sent back, to keep the order."""
        return []

    def settle(self, task: Task, *, succeeded: bool) -> bool:
        """Record the result of a listener call. After a success, offer the queue's next messages."""
        is_due = super().settle(task, succeeded=succeeded)
        if succeeded:
            self._advance(task)
        return is_due

    def finish(self, task: Task) -> None:
        """Mark the messages of `task` as consumed, and offer the queue's next messages."""
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

"""Consuming: calls the listener for the messages of all queues, with retries and dead letters.

    ready ─→ listener ─ success ────────────────────────────→ finished
                └ exception or RECONSUME_LATER ─→ `TaskRetries` ─→ ready again, or finished

A queue that has messages is put into the ready list once. A worker takes a portion of its messages, offers
the queue again if it has more, and decodes the portion, so the event loop does no work per message. Workers
start when items become ready, at most `consume_threads`, and stop when the ready list is empty. They are
threads for a plain listener, and tasks for a coroutine function.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from actors.supervisor import Supervisor
from cluster.client.config import PushConfig
from cluster.client.consumer.listener import ListenerCall, Outcome
from cluster.client.consumer.queue_work import QueueWork, Task
from cluster.client.consumer.retries import TaskRetries
from cluster.client.errors import DataDamaged
from cluster.client.hooks import ConsumeContext, call_hooks
from cluster.client.results import ReconsumeLater
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__, has_last_resort=True)

TIMED_EVERY = 16
BUG_BACKOFF_S = 1.0
LEASE_CHECK_S = 0.05

Item = QueueWork | Task


class Consuming:
    """The ready queues and tasks of one push consumer, and the workers that process them."""

    def __init__(
        self,
        listener: ListenerCall,
        config: PushConfig,
        clock: Clock,
        supervisor: Supervisor,
        settled: Callable[[QueueWork], None],
        retries: TaskRetries,
        has_lease: Callable[[int], bool],
    ) -> None:
        """Create the workers' shared state; call this on the event loop.

        Args:
            listener: The user's listener.
            config: Settings of the consumer.
            clock: The clock for timeouts.
            supervisor: Runs the tasks.
            settled: Called on the event loop when a full queue can fetch again, or when a queue that is
                being released has no running listener any more.
            retries: Retries the messages that the listener did not consume.
            has_lease: Returns False if the member's lease has expired at the given monotonic ms. Called from
                any thread.
        """
        self.listener = listener
        self._config = config
        self._clock = clock
        self._supervisor = supervisor
        self._settled = settled
        self._retries = retries
        self._has_lease = has_lease
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(config.consume_threads, f"consume-{config.group}")
        self._ready: deque[Item] = deque()
        # One item per worker that may still be started. Both deques are used without a lock (their operations
        # are atomic), because workers would contend for it.
        self._worker_slots = deque([None] * config.consume_threads)
        self._is_suspended = False
        if not listener.is_async:
            # Fail now if the system cannot start a thread. One thread is enough, as it processes all items.
            self._executor.submit(_nothing)

    def offer(self, item: Item) -> None:
        """Add a queue or task to the ready list.

        If the listener is a plain function, this may be called from any thread.
        """
        self._ready.append(item)
        if not self._is_suspended and self._reserve_worker():
            self._start_worker()

    def suspend(self, *, suspended: bool) -> None:
        """Stop calling the listener if `suspended` is true, else resume."""
        self._is_suspended = suspended
        if not suspended:
            for _ in range(len(self._ready)):
                if not self._reserve_worker():
                    return
                self._start_worker()

    def _reserve_worker(self) -> bool:
        try:
            self._worker_slots.pop()
        except IndexError:
            return False
        return True

    def stop(self) -> None:
        """Stop calling the listener. This does not wait for running calls."""
        self.suspend(suspended=True)
        self._executor.shutdown(wait=False)

    def _start_worker(self) -> None:
        if self.listener.is_async:
            self._supervisor.start("listener", self._work_async)
            return
        try:
            self._executor.submit(self._work)
        except RuntimeError:
            # The system cannot start a thread. The executor has queued the call for its running threads.
            _log.warning("consume_thread_start_failed", group=self._config.group, exc_info=True)

    def _next(self) -> Item | None:
        """Return the next ready item, or None if the worker must stop."""
        while True:
            if not self._is_suspended:
                with suppress(IndexError):
                    return self._ready.popleft()
            self._worker_slots.append(None)
            # An item that was offered just before this slot became free has not started a worker.
            if self._is_suspended or not self._ready or not self._reserve_worker():
                return None

    def _work(self) -> None:
        """Process ready items in a thread until none is left."""
        while (item := self._next()) is not None:
            try:
                task = self._begin(item)
                if task is not None:
                    item = task
                    context = self._context(task)
                    self._end(task, context, self.listener.call(list(task.messages)))
            except Exception as error:  # noqa: BLE001 -- a bug in RayMQ with one item must not stop the others
                self._retry_after_bug(item, error)

    async def _work_async(self) -> None:
        """Process ready items in a task until none is left."""
        while (item := self._next()) is not None:
            try:
                task = self._begin(item)
                if task is not None:
                    item = task
                    context = self._context(task)
                    self._end(task, context, await self.listener.call_async(list(task.messages)))
            except Exception as error:  # noqa: BLE001 -- as above
                self._retry_after_bug(item, error)
            await asyncio.sleep(0)  # a listener that never awaits must not block the event loop

    def _retry_after_bug(self, item: Item, error: Exception) -> None:
        queue = item.queue if isinstance(item, QueueWork) else item.work.queue
        _log.error("consume_failed", group=self._config.group, queue=str(queue), exc_info=error)
        self._on_loop(self._loop.call_later, BUG_BACKOFF_S, self.offer, item)

    def _on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call `callback` on the event loop, from a worker. Do nothing if the loop is closed."""
        if self.listener.is_async:
            callback(*arguments)
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _begin(self, item: Item) -> Task | None:
        """Return the task for the next listener call, or None if there is nothing to do for `item`."""
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        if not self._has_lease(now_ms):
            # The event loop will suspend the consumer, but after a pause of the process (SIGSTOP) a worker
            # may run before the event loop.
            self._on_loop(self._loop.call_later, LEASE_CHECK_S, self.offer, item)
            return None
        if isinstance(item, Task):
            return item if item.work.retry_task(item, now_ms) else None
        try:
            task, has_more = item.take(self._config.consume_batch, now_ms)
        except DataDamaged:
            # Do not skip damaged data: consumption of this queue stops until an operator acts.
            _log.exception("consumption_stopped", queue=str(item.queue))
            self._on_loop(item.fetcher.stop)
            return None
        if has_more:
            self.offer(item)
        return task

    def _end(self, task: Task, context: ConsumeContext | None, outcome: Outcome) -> None:
        """Process the outcome of a listener call: log, run hooks, settle the task, schedule a retry."""
        error = outcome if isinstance(outcome, Exception) else None
        succeeded = outcome is True
        if error is not None:
            _log.warning(
                "listener_failed",
                group=self._config.group,
                queue=str(task.work.queue),
                offset=task.portion.begin,
                attempt=task.messages[0].reconsume_times + 1,
                exc_info=error,
            )
        if context is not None:
            context.is_success, context.error = succeeded, error
            call_hooks([hook.after_consume for hook in self._config.consume_hooks], context)
        if not task.portion.begin % TIMED_EVERY:  # measuring every call would cost throughput
            task.work.note_time(self._clock.monotonic_ns() // NS_PER_MS - task.started_ms)
        if task.is_abandoned:
            return
        if not succeeded:
            level = outcome.delay_level if isinstance(outcome, ReconsumeLater) else 0
            self._on_loop(self._retries.failed, task, level, self.offer)
        elif task.work.settle(task, succeeded=True):
            self._on_loop(self._settled, task.work)

    def _context(self, task: Task) -> ConsumeContext | None:
        hooks = self._config.consume_hooks
        if not hooks:
            return None
        context = ConsumeContext(
            task.work.names.unwrap(self._config.group),
            task.work.names.unwrap_queue(task.work.queue),
            task.messages,
        )
        call_hooks([hook.before_consume for hook in hooks], context)
        return context


def _nothing() -> None:
    """Do nothing. Submitting this function makes the executor start its first thread."""

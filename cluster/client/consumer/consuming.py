"""Running a listener over the messages of queues, again after it failed, and to the dead letters in the end.

    ready ─→ listener ─ success ────────────────────────────→ finished
                └ exception or RECONSUME_LATER ─ back-off ─→ ready   (up to `max_reconsume_times`)
                                                         └→ dead letter ─→ finished

A queue with messages is offered once. A worker takes a portion of it, offers the queue again if it has more,
and decodes what it took: no message costs the loop anything. Workers start as items become ready, at most
`consume_threads`, and end when nothing is; they are threads for a plain listener and tasks for a coroutine
function.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from actors.host.supervisor import Supervisor
from cluster.client.config import PushConfig
from cluster.client.consumer.listener import ListenerCall, Outcome
from cluster.client.consumer.queue_work import QueueWork, Task
from cluster.client.errors import DataDamaged
from cluster.client.hooks import ConsumeContext, call_hooks
from store.clock import NS_PER_MS, Clock
from store.logs import get_logger
from store.message.message import MessageExt

log = get_logger(__name__, has_last_resort=True)

TIMED_EVERY = 16
BUG_BACKOFF_S = 1.0

Item = QueueWork | Task


class Consuming:
    """The ready items and the workers of one push consumer."""

    def __init__(
        self,
        listener: ListenerCall,
        config: PushConfig,
        clock: Clock,
        supervisor: Supervisor,
        settled: Callable[[QueueWork], None],
        dead_letter: Callable[[QueueWork, Sequence[MessageExt]], Awaitable[bool]],
    ) -> None:
        """`settled(work)` is called on the loop when there is room again, or a leaving queue is free."""
        self.listener = listener
        self._config = config
        self._clock = clock
        self._supervisor = supervisor
        self._settled = settled
        self._dead_letter = dead_letter
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(config.consume_threads, f"consume-{config.group}")
        self._ready: deque[Item] = deque()
        # One for each worker that may be started. No lock guards the two: workers would wait for it.
        self._startable = deque([None] * config.consume_threads)
        self._is_held = False
        if not listener.is_async:
            # Fail here if the system gives no thread. Later ones are not needed: the first takes all items.
            self._executor.submit(_nothing)

    def offer(self, item: Item) -> None:
        """Have the listener called with what `item` has. From any thread if the listener is plain."""
        self._ready.append(item)
        if not self._is_held and self._may_start():
            self._start_worker()

    def hold(self, *, held: bool) -> None:
        """Stop calling the listener, or resume."""
        self._is_held = held
        if not held:
            for _ in range(len(self._ready)):
                if not self._may_start():
                    return
                self._start_worker()

    def _may_start(self) -> bool:
        try:
            self._startable.pop()
        except IndexError:
            return False
        return True

    def stop(self) -> None:
        """Start no more calls; does not wait for those that run."""
        self.hold(held=True)
        self._executor.shutdown(wait=False)

    def _start_worker(self) -> None:
        if self.listener.is_async:
            self._supervisor.start("listener", self._work_async)
            return
        try:
            self._executor.submit(self._work)
        except RuntimeError:  # no more threads; the executor has kept the call for those that run
            log.warning("consume_thread_start_failed", group=self._config.group, exc_info=True)

    def _next(self) -> Item | None:
        """Return the next ready item; None ends the worker."""
        while True:
            if not self._is_held:
                with suppress(IndexError):
                    return self._ready.popleft()
            self._startable.append(None)
            # An item that was offered just before has started no worker.
            if self._is_held or not self._ready or not self._may_start():
                return None

    def _work(self) -> None:
        """Consume in a thread until nothing is ready."""
        while (item := self._next()) is not None:
            try:
                task = self._begin(item)
                if task is not None:
                    item = task
                    context = self._context(task)
                    self._end(task, context, self.listener.call(list(task.messages)))
            except Exception as error:  # noqa: BLE001 -- a bug of ours in one item must not stop the others
                self._retry_after_bug(item, error)

    async def _work_async(self) -> None:
        """Consume in a task until nothing is ready."""
        while (item := self._next()) is not None:
            try:
                task = self._begin(item)
                if task is not None:
                    item = task
                    context = self._context(task)
                    self._end(task, context, await self.listener.call_async(list(task.messages)))
            except Exception as error:  # noqa: BLE001 -- as above
                self._retry_after_bug(item, error)
            await asyncio.sleep(0)  # a listener that never waits must not hold the loop

    def _retry_after_bug(self, item: Item, error: Exception) -> None:
        queue = item.queue if isinstance(item, QueueWork) else item.work.queue
        log.error("consume_failed", group=self._config.group, queue=str(queue), exc_info=error)
        self._on_loop(self._loop.call_later, BUG_BACKOFF_S, self.offer, item)

    def _on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call this on the loop, from a worker; a closed loop has nobody who waits for it."""
        if self.listener.is_async:
            callback(*arguments)
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _begin(self, item: Item) -> Task | None:
        """Return what the listener is to be called with now, if anything."""
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        if isinstance(item, Task):
            return item if item.work.retry_task(item, now_ms) else None
        try:
            task, has_more = item.take(self._config.consume_batch, now_ms)
        except DataDamaged:
            # Never skipped silently, never guessed: the queue stops here until an operator acts.
            log.exception("consumption_stopped", queue=str(item.queue))
            self._on_loop(item.fetcher.stop)
            return None
        if has_more:
            self.offer(item)
        return task

    def _end(self, task: Task, context: ConsumeContext | None, outcome: Outcome) -> None:
        """Settle a task whose listener has returned."""
        error = outcome if isinstance(outcome, Exception) else None
        succeeded = outcome is True
        if error is not None:
            log.warning(
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
        if not task.portion.begin % TIMED_EVERY:  # a look at the clock for each call would be felt
            task.work.note_time(self._clock.monotonic_ns() // NS_PER_MS - task.started_ms)
        if task.is_given_up:
            return
        if task.work.settle(task, succeeded=succeeded):
            self._on_loop(self._settled, task.work)
        if not succeeded and not task.work.is_leaving:
            self._on_loop(self._again, task)

    def _context(self, task: Task) -> ConsumeContext | None:
        hooks = self._config.consume_hooks
        if not hooks:
            return None
        context = ConsumeContext(self._config.group, task.work.queue, task.messages)
        call_hooks([hook.before_consume for hook in hooks], context)
        return context

    def _again(self, task: Task) -> None:
        for message in task.messages:
            message.reconsume_times += 1
        attempts = max(message.reconsume_times for message in task.messages)
        delays_ms = self._config.retry_backoff_ms
        delay_s = delays_ms[min(attempts, len(delays_ms)) - 1] / 1000
        if attempts > self._config.max_reconsume_times:
            self._supervisor.start("dead letter", partial(self._send_to_dlq, task, delay_s))
        else:
            self._loop.call_later(delay_s, self.offer, task)

    async def _send_to_dlq(self, task: Task, delay_s: float) -> None:
        work = task.work
        while not work.is_leaving:
            if await self._dead_letter(work, task.messages):
                work.finish(task)
                self._settled(work)
                return
            await asyncio.sleep(delay_s)


def _nothing() -> None:
    """Have the executor start its first thread."""

"""Running a listener over the messages of queues, again after it failed, and to the dead letters in the end.

offer ─→ listener ─ success ────────────────────────────→ finished
            └ exception or RECONSUME_LATER ─ back-off ─→ listener   (up to `max_reconsume_times`)
                                                     └→ dead letter ─→ finished

A queue with messages is offered once; whoever is free takes a portion of it, offers it again where more is
there, and decodes what he took: no message costs the loop anything.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

from cluster.client.config import PushConfig
from cluster.client.consumer.queue_work import QueueWork, Task
from cluster.client.consumer.workers import Workers
from cluster.client.errors import DataDamaged
from cluster.client.hooks import ConsumeContext, call_hooks
from cluster.client.results import ConsumeStatus
from store.clock import NS_PER_MS, Clock
from store.logs import get_logger
from store.message.message import MessageExt

log = get_logger(__name__, has_last_resort=True)

TIMED_EVERY = 16

Verdict = ConsumeStatus | bool | None
Listener = Callable[[list[MessageExt]], Verdict | Awaitable[Verdict]]
Item = QueueWork | Task


def is_success(verdict: Verdict) -> bool:
    """What a listener's answer means. Raises TypeError for one that means nothing."""
    if verdict in (None, True, ConsumeStatus.CONSUME_SUCCESS):
        return True
    if verdict in (False, ConsumeStatus.RECONSUME_LATER):
        return False
    raise TypeError(
        f"the listener returned {verdict!r}: return nothing, True or CONSUME_SUCCESS when the messages are "
        "done, False or RECONSUME_LATER when they are to come again"
    )


class Consuming:
    """Runs the listener: a plain function in worker threads, a coroutine function in tasks of the loop."""

    def __init__(
        self,
        listener: Listener,
        config: PushConfig,
        clock: Clock,
        settled: Callable[[QueueWork], None],
        dead_letter: Callable[[QueueWork, Sequence[MessageExt]], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        """`settled(work)` is called on the loop when there is room again, or a leaving queue is free."""
        self._listener = listener
        self._config = config
        self._clock = clock
        self._settled = settled
        self._dead_letter = dead_letter
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            getattr(listener, "__call__", None)  # noqa: B004 -- an object with an async __call__
        )
        self._workers = Workers(config.consume_threads, f"consume-{config.group}")
        self._free_slots = config.consume_threads
        self._ready: deque[Item] = deque()
        self._is_held = False
        self._held: list[Item] = []
        self._holding = threading.Lock()
        self._in_listener: ContextVar[bool] = ContextVar("in_listener", default=False)
        self._before = [hook.before_consume for hook in config.consume_hooks]
        self._after = [hook.after_consume for hook in config.consume_hooks]

    @property
    def is_caller_listener(self) -> bool:
        """Whether the listener itself is asking, from its thread or its task (a context goes with a call)."""
        return self._in_listener.get()

    def offer(self, item: Item) -> None:
        """Have the listener called with what `item` has. From any thread where the listener is a plain
        function.
        """
        self._put(item)
        if self._is_async:
            self._fill_slots()

    def _put(self, item: Item) -> None:
        if self._is_async:
            self._ready.append(item)
        else:
            self._workers.put(partial(self._work, item))

    def hold(self, *, held: bool) -> None:
        """Call the listener no more until told otherwise."""
        with self._holding:
            self._is_held = held
            items, self._held = ([], self._held) if held else (self._held, [])
        for item in items:
            self.offer(item)

    async def call_directly(self, message: MessageExt) -> bool | Exception:
        """Call the listener with one message, out of turn: whether it succeeded, or what it raised. No offset
        moves.
        """
        if self._is_async:
            try:
                return is_success(await self._awaited([message]))
            except BaseException as error:  # noqa: BLE001 -- the one who asked is told
                return _failure(error)
        # As a result, not raised: a future takes no StopIteration.
        ended: asyncio.Future[bool | Exception] = self._loop.create_future()

        def call() -> None:
            outcome: bool | Exception
            try:
                outcome = is_success(self._called([message]))
            except BaseException as error:  # noqa: BLE001 -- the one who asked is told
                outcome = _failure(error)
            self._on_loop(_end, ended, outcome)

        self._workers.put(call)
        return await ended

    def _called(self, messages: list[MessageExt]) -> Verdict:
        """What a plain function answers, in its thread; of an awaitable what comes of it on the loop."""
        self._in_listener.set(True)
        answer = self._listener(messages)
        if answer is None or not inspect.isawaitable(answer):
            return answer

        async def awaited() -> Verdict:
            return await answer

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    async def _awaited(self, messages: list[MessageExt]) -> Verdict:
        """What a coroutine function answers, in its task."""
        self._in_listener.set(True)
        return await cast("Awaitable[Verdict]", self._listener(messages))

    def _on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call this on the loop, from a listener's thread; where the loop is closed, nobody waits for it."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _time(self, task: Task) -> None:
        """Time one call in so many: a look at the clock for each would be felt."""
        if not task.portion.begin % TIMED_EVERY:
            task.work.note_time(self._clock.monotonic_ns() // NS_PER_MS - task.started_ms)

    def stop(self) -> None:
        """No more will come."""
        self._workers.stop()

    def _begin(self, item: Item) -> Task | None:
        """What the listener is to be called with now, if anything."""
        with self._holding:
            if self._is_held:
                self._held.append(item)
                return None
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        if isinstance(item, Task):
            return item if item.work.begin_again(item, now_ms) else None
        try:
            task, has_more = item.take(self._config.consume_batch, now_ms)
        except DataDamaged:
            # Never passed over in silence, never guessed at: the queue stops here until somebody looks.
            log.exception("queue_stopped_at_damage", queue=str(item.queue))
            if item.fetcher is not None:
                self._on_loop(item.fetcher.stop)
            return None
        if has_more:
            self._put(item)
        return task

    def _work(self, item: Item) -> None:
        """In a worker thread."""
        task = self._begin(item)
        if task is None:
            return
        context = self._context(task)
        try:
            succeeded = is_success(self._called(list(task.messages)))  # a list that is the listener's own
        except BaseException as raised:  # noqa: BLE001 -- whatever the user's code raises means: again later
            self._failed(task, context, _failure(raised))
            succeeded = False
        else:
            self._tell_hooks(context, is_success=succeeded)
        self._time(task)
        if task.is_given_up:
            return
        work = task.work
        if work.settle(task, succeeded=succeeded):
            self._on_loop(self._settled, work)
        if not succeeded and not work.is_leaving:
            self._on_loop(self._again, task)

    def _fill_slots(self) -> None:
        while self._ready and self._free_slots:
            task = self._begin(self._ready.popleft())
            if task is not None:
                self._free_slots -= 1
                self._spawn(self._work_async(task), "listener")

    async def _work_async(self, task: Task) -> None:
        context = self._context(task)
        try:
            succeeded = is_success(await self._awaited(list(task.messages)))
        except BaseException as raised:  # noqa: BLE001 -- as above
            self._failed(task, context, _failure(raised))
            succeeded = False
        else:
            self._tell_hooks(context, is_success=succeeded)
        finally:
            self._free_slots += 1
        self._time(task)
        work = task.work
        if not task.is_given_up:
            if work.settle(task, succeeded=succeeded):
                self._settled(work)
            if not succeeded and not work.is_leaving:
                self._again(task)
        self._fill_slots()

    def _context(self, task: Task) -> ConsumeContext | None:
        if not self._before:
            return None
        context = ConsumeContext(self._config.group, task.work.queue, task.messages)
        call_hooks(self._before, context)
        return context

    def _tell_hooks(
        self, context: ConsumeContext | None, *, is_success: bool, error: Exception | None = None
    ) -> None:
        if context is not None:
            context.is_success, context.error = is_success, error
            call_hooks(self._after, context)

    def _failed(self, task: Task, context: ConsumeContext | None, error: Exception) -> None:
        log.warning(
            "listener_failed",
            group=self._config.group,
            queue=str(task.work.queue),
            offset=task.portion.begin,
            attempt=task.messages[0].reconsume_times + 1,
            exc_info=error,
        )
        self._tell_hooks(context, is_success=False, error=error)

    def _again(self, task: Task) -> None:
        for message in task.messages:
            message.reconsume_times += 1
        attempts = max(message.reconsume_times for message in task.messages)
        delays_ms = self._config.retry_backoff_ms
        delay_s = delays_ms[min(attempts, len(delays_ms)) - 1] / 1000
        if attempts > self._config.max_reconsume_times:
            self._spawn(self._bury(task, delay_s), "dead letter")
        else:
            self._loop.call_later(delay_s, self.offer, task)

    async def _bury(self, task: Task, delay_s: float) -> None:
        work = task.work
        while not work.is_leaving:
            if await self._dead_letter(work, task.messages):
                work.finish(task)
                self._settled(work)
                return
            await asyncio.sleep(delay_s)


def _failure(raised: BaseException) -> Exception:
    """What a listener raised, as a failure of its messages: `sys.exit` in it must end neither its thread nor
    the loop, where all clients of the process live. Raises CancelledError where the client cancels its task.
    """
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # in a thread
            task = None
        if task is not None and task.cancelling():
            raise raised
    failure = RuntimeError(f"the listener raised {type(raised).__name__}")
    failure.__cause__ = raised
    return failure


def _end(ended: asyncio.Future[bool | Exception], outcome: bool | Exception) -> None:
    if not ended.done():
        ended.set_result(outcome)

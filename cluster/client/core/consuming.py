"""Running a listener over one queue's messages, again after it failed, and to the dead letters in the end.

put ─→ listener ─ success ────────────────────────────→ finished
          └ exception or RECONSUME_LATER ─ back-off ─→ put   (up to `max_reconsume_times`)
                                                   └→ dead letter ─→ finished
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cluster.client.config import PushConfig
from cluster.client.core.fetcher import Fetcher
from cluster.client.core.process_queue import Portion, ProcessQueue
from cluster.client.core.workers import Workers
from cluster.client.results import ConsumeStatus
from store.logs import get_logger
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

log = get_logger(__name__)

Verdict = ConsumeStatus | bool | None
Listener = Callable[[list[MessageExt]], Verdict | Awaitable[Verdict]]


@dataclass(slots=True, eq=False)
class QueueWork:
    """One queue of a push consumer: what fetches it, what of it is in work, and whether it is being given
    back.
    """

    queue: MessageQueue
    generation: int
    process_queue: ProcessQueue
    committed: int = -1
    fetcher: Fetcher | None = None
    is_leaving: bool = False
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """A listener is about to run: say whether it may. From any thread."""
        with self.lock:
            if self.is_leaving:
                return False
            self.running += 1
            return True

    def leave(self) -> bool:
        """Begin to give the queue back; says whether no listener runs now."""
        with self.lock:
            self.is_leaving = True
            return not self.running


@dataclass(slots=True, eq=False)
class Task:
    """Messages for one call of the listener."""

    work: QueueWork
    process_queue: ProcessQueue
    portion: Portion
    messages: list[MessageExt]
    attempts: int = 0


def is_success(verdict: Verdict) -> bool:
    """What a listener's answer means."""
    return verdict in (None, True, ConsumeStatus.CONSUME_SUCCESS)


class Consuming:
    """Runs the listener: a plain function in worker threads, a coroutine function in tasks of the loop."""

    def __init__(
        self,
        listener: Listener,
        config: PushConfig,
        finished: Callable[[Task], None],
        dead_letter: Callable[[Sequence[MessageExt]], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        """`finished(task)` is called on the loop when its messages are done, or a leaving queue lets them
        be.
        """
        self._listener = listener
        self._config = config
        self._finished = finished
        self._dead_letter = dead_letter
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            getattr(listener, "__call__", None)  # noqa: B004 -- an object with an async __call__
        )
        self._workers = Workers(config.consume_threads, f"consume-{config.group}")
        self._slots = asyncio.Semaphore(config.consume_threads)
        self._held: list[Task] | None = None

    def put(self, task: Task) -> None:
        """Have the listener called with the task's messages. On the loop."""
        if self._held is not None:
            self._held.append(task)
        elif self._is_async:
            self._spawn(self._consume_async(task), "listener")
        else:
            self._workers.put(lambda: self._consume(task))

    def hold(self, *, held: bool) -> None:
        """Call the listener no more until told otherwise."""
        if held:
            self._held = self._held or []
        elif self._held is not None:
            tasks, self._held = self._held, None
            for task in tasks:
                self.put(task)

    def stop(self) -> None:
        """No more tasks will come."""
        self._workers.stop()

    def _consume(self, task: Task) -> None:
        """In a worker thread."""
        if not task.work.begin():
            return
        try:
            succeeded = is_success(cast("Verdict", self._listener(task.messages)))
        except Exception as error:  # noqa: BLE001 -- whatever the user's code raises means: again later
            self._log_failure(task, error)
            succeeded = False
        self._loop.call_soon_threadsafe(self._ended, task, succeeded)

    async def _consume_async(self, task: Task) -> None:
        async with self._slots:
            if not task.work.begin():
                return
            try:
                succeeded = is_success(await cast("Awaitable[Verdict]", self._listener(task.messages)))
            except Exception as error:  # noqa: BLE001 -- whatever the user's code raises means: again later
                self._log_failure(task, error)
                succeeded = False
        self._ended(task, succeeded)

    def _log_failure(self, task: Task, error: Exception) -> None:
        log.warning(
            "listener_failed",
            group=self._config.group,
            queue=str(task.work.queue),
            offset=task.portion.begin,
            attempt=task.attempts + 1,
            exc_info=error,
        )

    def _ended(self, task: Task, succeeded: bool) -> None:
        with task.work.lock:
            task.work.running -= 1
        if succeeded:
            task.process_queue.finish(task.portion)
        elif not task.work.is_leaving:
            self._again(task)
        self._finished(task)

    def _again(self, task: Task) -> None:
        task.attempts += 1
        for message in task.messages:
            message.reconsume_times += 1
        delays_ms = self._config.retry_backoff_ms
        delay_s = delays_ms[min(task.attempts, len(delays_ms)) - 1] / 1000
        if task.attempts > self._config.max_reconsume_times:
            self._spawn(self._bury(task, delay_s), "dead letter")
        else:
            self._loop.call_later(delay_s, self.put, task)

    async def _bury(self, task: Task, delay_s: float) -> None:
        while not task.work.is_leaving:
            if await self._dead_letter(task.messages):
                task.process_queue.finish(task.portion)
                self._finished(task)
                return
            await asyncio.sleep(delay_s)

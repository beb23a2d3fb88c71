"""TaskWorker: receives tasks, runs their handlers, and acknowledges each task when its result is stored.

receive ──► has a result, or is not the first with its id ──► ack
  │     ──► cannot be decoded, or has no handler ──► unprocessable queue ──► ack
  └──► run, and renew ──► returned ──► result SUCCESS ──► ack
                      ──► raised, or max_run_ms ──► nack; without retries left:
                                       failed queue ──► result FAILURE ──► ack
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from ray.serve.schema import TaskProcessorConfig

from cluster.client import PopConfig
from cluster.client.aio import PopConsumer
from cluster.client.errors import ClientError, ConfigInvalid, MessageRejected
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.loop_thread import LoopThread
from jobs.job_errors import BodyInvalid
from jobs.tasks.claim import Claim
from jobs.tasks.serve.task_bodies import FAILURE, REVOKED, SUCCESS, Outcome, Task, decode
from jobs.tasks.serve.task_queue import TaskQueue
from store.common.logs import get_logger
from store.message.pop_records import MESSAGES_MAX
from store.message.properties import MessageConst

_log = get_logger(__name__)
T = TypeVar("T")

RECEIVE_MS = 1_000
RETRY_DELAY_MAX_MS = 60_000
REPEAT_S = 60.0
"""How long a request is repeated. Then the task is delivered again."""
ERROR_CHARACTERS = 1_000


class TaskWorker:
    """The consumer of one replica. All coroutines run on the event loop of the queue."""

    def __init__(
        self,
        queue: TaskQueue,
        processor: TaskProcessorConfig,
        handlers: Mapping[str, Callable[..., Any]],
        concurrency: int,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.running: set[asyncio.Task[None]] = set()
        self._queue, self._config, self._processor = queue, queue.config, processor
        self._handlers, self._concurrency = handlers, concurrency
        pop = PopConfig(group=queue.group, invisible_ms=queue.config.invisible_ms, **queue.settings)
        self._consumer = PopConsumer(config=pop)
        # A handler that overruns keeps its thread: there are as many for those that follow.
        self._threads = ThreadPoolExecutor(2 * concurrency, f"task-{queue.name}")
        self._overrun: set[Future[Any]] = set()
        self._handler_loop: LoopThread | None = None
        self._is_stopping = False
        self._freed = asyncio.Event()
        self._spawn = self._consumer.core.instance.spawn
        self._taking = self._spawn(self._take(), "task-take")

    @property
    def failure(self) -> str | None:
        """Why no tasks are taken, or None."""
        if self._taking.done():
            return "stopped" if self._taking.cancelled() else repr(self._taking.exception() or "stopped")
        hangs = len(self._overrun) >= 2 * self._concurrency
        return f"{len(self._overrun)} handlers overran and do not end: restart the replica" if hangs else None

    async def stop(self, timeout_s: float) -> None:
        """Take no more tasks and wait for the running ones. Return those that still run after the timeout."""
        self._is_stopping = True
        self._freed.set()
        end_s = time.monotonic() + timeout_s
        await asyncio.wait({self._taking}, timeout=timeout_s)
        self._taking.cancel()
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=max(end_s - time.monotonic(), 0))
            for each in late:
                each.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._consumer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self) -> None:
        backoff, most = Backoff(100, 5_000), self._concurrency
        while not self._is_stopping:
            self._freed.clear()
            count = min(most, 2 * most - len(self._overrun)) - len(self.running)
            if count <= 0:
                await self._freed.wait()
                continue
            try:
                messages = await self._consumer.receive(
                    self._queue.name,
                    max_messages=1 if self._config.ordered else min(count, MESSAGES_MAX),
                    timeout_ms=RECEIVE_MS,
                    ordered=self._config.ordered,
                )
            except ClientError as error:
                _log.warning("task_receive_failed", queue=self._queue.name, error=str(error))
                await asyncio.sleep(backoff.next_ms() / 1000)
                continue
            backoff.reset()
            for message in messages:
                claim = Claim(self._consumer, message, self._config.invisible_ms)
                work = self._spawn(self._work_on(claim), "task")
                self.running.add(work)
                work.add_done_callback(self._end)

    def _end(self, work: asyncio.Task[None]) -> None:
        self.running.discard(work)
        self._freed.set()

    async def _work_on(self, claim: Claim) -> None:
        try:
            await self._handle(claim)
        except ClientError as error:  # it is delivered again after its invisible time
            _log.warning("task_not_settled", queue=self._queue.name, error=str(error))
        except asyncio.CancelledError:
            _log.warning("task_returned", queue=self._queue.name, message=claim.message.msg_id)
            with suppress(ClientError):  # otherwise it is delivered again after its invisible time
                await claim.nack()
        finally:
            await claim.end()

    async def _handle(self, claim: Claim) -> None:
        message, retries = claim.message, self._processor.max_retries
        try:
            task = decode(message.body, Task)
        except BodyInvalid as error:
            return await self._unprocessable(claim, None, str(error))
        is_done = await _repeated(lambda: self._queue.final(task.id)) is not None
        if is_done or (task.unique and not await _repeated(lambda: self._queue.is_first(task.id, message))):
            self.counts["skipped"] += 1
            return await claim.ack()
        handler = self._handlers.get(task.task)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            return await self._unprocessable(
                claim, task, f"no handler is named {task.task!r}; known: {known}"
            )
        if retries is not None and message.reconsume_times > retries:
            times = message.reconsume_times
            return await self._fail(claim, task, f"delivered {times} times before, and never acknowledged")
        call = self._submit(handler, task)
        try:
            return await self._run(claim, task, call)
        finally:
            call.cancel()

    def _submit(self, handler: Callable[..., Any], task: Task) -> Future[Any]:
        if not inspect.iscoroutinefunction(handler):
            return self._threads.submit(handler, *task.args, **task.kwargs)
        if self._handler_loop is None:  # not the loop of the replica, which waits in stop_consumer
            self._handler_loop = LoopThread(f"tasks-{self._queue.name}")
        return asyncio.run_coroutine_threadsafe(handler(*task.args, **task.kwargs), self._handler_loop.loop)

    async def _run(self, claim: Claim, task: Task, call: Future[Any]) -> None:
        returned, limit_ms = asyncio.wrap_future(call), self._config.max_run_ms
        end_s = math.inf if limit_ms is None else time.monotonic() + limit_ms / 1000
        while not returned.done() and (left_s := end_s - time.monotonic()) > 0:
            await asyncio.wait({returned}, timeout=min(left_s, self._config.invisible_ms / 3000))
            if not returned.done() and await self._is_revoked(task.id):
                call.cancel()  # one in a thread runs to its end
        if not returned.done() and not call.cancel():
            self._overrun.add(call)
            returned.add_done_callback(lambda _: self._end_overrun(call))
        if not returned.done():
            return await self._retry(claim, task, f"ran longer than max_run_ms {limit_ms}")
        if returned.cancelled():
            if await _repeated(lambda: self._queue.final(task.id)):  # the task is revoked
                return await claim.ack()
            return await self._retry(claim, task, "the handler cancelled itself")
        if (error := returned.exception()) is not None:
            return await self._retry(claim, task, f"{type(error).__name__}: {error}")
        try:
            await self._settle(claim, Outcome(task.id, SUCCESS, returned.result()))
        except (BodyInvalid, ConfigInvalid, MessageRejected) as invalid:
            return await self._fail(claim, task, f"the result of the handler is invalid: {invalid}")
        self.counts["succeeded"] += 1
        return None

    async def _is_revoked(self, task_id: str) -> bool:
        with suppress(ClientError):  # it is checked again
            return (final := await self._queue.final(task_id)) is not None and final.status == REVOKED
        return False

    def _end_overrun(self, call: Future[Any]) -> None:
        self._overrun.discard(call)
        self._freed.set()

    async def _retry(self, claim: Claim, task: Task, error: str) -> None:
        retries, limit = claim.message.reconsume_times, self._processor.max_retries
        if limit is not None and retries >= limit:
            return await self._fail(claim, task, error)
        self.counts["retried"] += 1
        _log.warning("task_retried", queue=self._queue.name, task=task.id, retries=retries, error=error)
        delay_ms = self._config.retry_backoff_ms << min(retries, 16)
        return await claim.nack(min(delay_ms, RETRY_DELAY_MAX_MS))

    async def _fail(self, claim: Claim, task: Task, error: str) -> None:
        await self._move("failed", self._processor.failed_task_queue_name, claim, error)
        await self._settle(claim, Outcome(task.id, FAILURE, error))

    async def _unprocessable(self, claim: Claim, task: Task | None, error: str) -> None:
        await self._move("unprocessable", self._processor.unprocessable_task_queue_name, claim, error)
        await (claim.ack() if task is None else self._settle(claim, Outcome(task.id, FAILURE, error)))

    async def _move(self, kind: str, topic: str | None, claim: Claim, error: str) -> None:
        """Count a task and send it to a dead queue."""
        keys = claim.message.properties.get(MessageConst.KEYS)
        self.counts[kind] += 1
        _log.warning(f"task_{kind}", queue=self._queue.name, task=keys, error=error)
        if topic is not None:
            text = error[:ERROR_CHARACTERS].translate({1: " ", 2: " "})
            properties, body = {"queue": self._queue.name, "error": text}, claim.message.body
            await _repeated(lambda: self._queue.producer.send(topic, body, keys=keys, properties=properties))

    async def _settle(self, claim: Claim, outcome: Outcome) -> None:
        """Store a result and acknowledge the task."""
        outcome.created_ms = claim.message.born_timestamp
        await _repeated(lambda: self._queue.publish(outcome))
        await claim.ack()


async def _repeated(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request that may succeed later, for REPEAT_S. Raises ClientError."""
    backoff, end_s = Backoff(100, 5_000), time.monotonic() + REPEAT_S
    while True:
        try:
            return await request()
        except ClientError as error:
            if not error.retriable or time.monotonic() >= end_s:
                raise
        await asyncio.sleep(backoff.next_ms() / 1000)

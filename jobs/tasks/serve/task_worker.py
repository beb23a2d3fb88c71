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
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ray.serve.schema import TaskProcessorConfig

from cluster.client import PopConfig
from cluster.client.aio import PopConsumer
from cluster.client.errors import ClientError, ConfigInvalid, MessageRejected
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.loop_thread import LoopThread
from jobs.job_errors import BodyInvalid
from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.task_bodies import FAILURE, REVOKED, SUCCESS, Outcome, Task, decode
from jobs.tasks.serve.task_queue import TaskQueue
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.pop_records import MESSAGES_MAX
from store.message.properties import MessageConst

_log = get_logger(__name__)
T = TypeVar("T")

RECEIVE_MS = 1_000
RETRY_DELAY_MAX_MS = 60_000
REPEAT_S = 60.0
"""How long a request is repeated. Then the task is delivered again."""
ERROR_CHARACTERS = 1_000


@dataclass(slots=True, eq=False)
class Delivery:
    """A received task: its message, when it was received or renewed (monotonic clock), and its handler."""

    message: MessageExt
    renewed_s: float
    task: Task | None = None
    call: Future[Any] | None = None
    renewal: asyncio.Task[None] | None = None
    is_settling: bool = False


class TaskWorker:
    """The consumer of one replica. All coroutines run on the event loop of the queue."""

    def __init__(
        self,
        queue: TaskQueue,
        processor: TaskProcessorConfig,
        config: RayMQAdapterConfig,
        handlers: Mapping[str, Callable[..., Any]],
        concurrency: int,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.deliveries: dict[Delivery, asyncio.Task[None]] = {}
        self._queue = queue
        self._config = config
        self._handlers = handlers
        self._processor = processor
        self._concurrency = concurrency
        pop = PopConfig(group=queue.group, invisible_ms=config.invisible_ms, **queue.settings)
        self._consumer = PopConsumer(config=pop)
        # A handler that overruns keeps its thread: there are as many for those that follow.
        self._threads = ThreadPoolExecutor(2 * concurrency, f"task-{queue.name}")
        self._handler_loop: LoopThread | None = None
        self._overrun: set[Future[Any]] = set()
        self._is_stopping = False
        self._freed = asyncio.Event()
        self._spawn = self._consumer.core.instance.spawn
        self._loops = [self._spawn(self._take(), "task-take"), self._spawn(self._renew(), "task-renew")]

    @property
    def failure(self) -> str | None:
        """Why no tasks are taken, or None."""
        for each in self._loops:
            if each.done():
                return "stopped" if each.cancelled() or each.exception() is None else repr(each.exception())
        hangs = len(self._overrun) >= 2 * self._concurrency
        return f"{len(self._overrun)} handlers overran and do not end: restart the replica" if hangs else None

    async def stop(self, timeout_s: float) -> None:
        """Take no more tasks and wait for the running ones. Return those that still run after the timeout."""
        self._is_stopping = True
        self._freed.set()
        end_s = time.monotonic() + timeout_s
        await asyncio.wait({self._loops[0]}, timeout=timeout_s)
        if self.deliveries:
            await asyncio.wait(self.deliveries.values(), timeout=max(end_s - time.monotonic(), 0))
        for delivery, work in list(self.deliveries.items()):
            work.cancel()
            await asyncio.wait({work})
            if delivery.call is not None:
                delivery.call.cancel()
            _log.warning("task_returned", queue=self._queue.name, message=delivery.message.msg_id)
            with suppress(ClientError):  # otherwise it is delivered again after its invisible time
                await self._nack(delivery, 0)
        for loop in self._loops:
            loop.cancel()
        await asyncio.wait(self._loops)
        await self._consumer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self) -> None:
        backoff, most = Backoff(100, 5_000), self._concurrency
        while not self._is_stopping:
            self._freed.clear()
            count = min(most, 2 * most - len(self._overrun)) - len(self.deliveries)
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
                delivery = Delivery(message, time.monotonic())
                self.deliveries[delivery] = self._spawn(self._work_on(delivery), "task")

    async def _renew(self) -> None:
        interval_s = self._config.invisible_ms / 3_000
        while True:
            await asyncio.sleep(interval_s / 4)
            for each in self.deliveries:
                is_renewing = each.is_settling or (each.renewal is not None and not each.renewal.done())
                if not is_renewing and time.monotonic() - each.renewed_s >= interval_s:
                    each.renewal = self._spawn(self._renew_one(each), "task-renewal")

    async def _renew_one(self, delivery: Delivery) -> None:
        """Renew a claim. If its task is revoked, cancel the handler; one in a thread runs to its end."""
        begin_s = time.monotonic()
        try:
            await self._consumer.extend(delivery.message, self._config.invisible_ms)
            delivery.renewed_s = begin_s
            if delivery.task is not None and delivery.call is not None:
                final = await self._queue.final(delivery.task.id)
                if final is not None and final.status == REVOKED:
                    delivery.call.cancel()
        except ClientError as error:
            _log.warning("task_renewal_failed", queue=self._queue.name, error=str(error))

    async def _work_on(self, delivery: Delivery) -> None:
        try:
            await self._handle(delivery)
        except ClientError as error:  # it is delivered again after its invisible time
            _log.warning("task_not_settled", queue=self._queue.name, error=str(error))
        finally:
            del self.deliveries[delivery]
            self._freed.set()

    async def _handle(self, delivery: Delivery) -> None:
        message, retries = delivery.message, self._processor.max_retries
        try:
            task = delivery.task = decode(message.body, Task)
        except BodyInvalid as error:
            return await self._unprocessable(delivery, str(error))
        if await _repeated(lambda: self._queue.final(task.id)) or not await self._is_first(task, message):
            self.counts["skipped"] += 1
            return await self._ack(delivery)
        handler = self._handlers.get(task.task)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            return await self._unprocessable(delivery, f"no handler is named {task.task!r}; known: {known}")
        if retries is not None and message.reconsume_times > retries:
            times = message.reconsume_times
            return await self._fail(delivery, task, f"delivered {times} times before, and never acknowledged")
        return await self._run(delivery, task, handler)

    async def _is_first(self, task: Task, message: MessageExt) -> bool:
        first = await _repeated(lambda: self._queue.first(task.id)) if task.unique else None
        return first is None or first.msg_id == message.msg_id

    async def _run(self, delivery: Delivery, task: Task, handler: Callable[..., Any]) -> None:
        call = delivery.call = self._submit(handler, task)
        returned, limit_ms = asyncio.wrap_future(call), self._config.max_run_ms
        done, _ = await asyncio.wait({returned}, timeout=None if limit_ms is None else limit_ms / 1000)
        if not done:
            if not call.cancel() and not call.done():
                self._overrun.add(call)
                returned.add_done_callback(lambda _: self._end_overrun(call))
            return await self._retry(delivery, task, f"ran longer than max_run_ms {limit_ms}")
        if returned.cancelled():
            if await _repeated(lambda: self._queue.final(task.id)):  # the task is revoked
                return await self._ack(delivery)
            return await self._retry(delivery, task, "the handler cancelled itself")
        if (error := returned.exception()) is not None:
            return await self._retry(delivery, task, f"{type(error).__name__}: {error}")
        try:
            await self._settle(delivery, Outcome(task.id, SUCCESS, returned.result()))
        except (BodyInvalid, ConfigInvalid, MessageRejected) as invalid:
            return await self._fail(delivery, task, f"the result of the handler is invalid: {invalid}")
        self.counts["succeeded"] += 1
        return None

    def _submit(self, handler: Callable[..., Any], task: Task) -> Future[Any]:
        if not inspect.iscoroutinefunction(handler):
            return self._threads.submit(handler, *task.args, **task.kwargs)
        if self._handler_loop is None:  # not the loop of the replica, which waits in stop_consumer
            self._handler_loop = LoopThread(f"tasks-{self._queue.name}")
        return asyncio.run_coroutine_threadsafe(handler(*task.args, **task.kwargs), self._handler_loop.loop)

    def _end_overrun(self, call: Future[Any]) -> None:
        self._overrun.discard(call)
        self._freed.set()

    async def _retry(self, delivery: Delivery, task: Task, error: str) -> None:
        retries, limit = delivery.message.reconsume_times, self._processor.max_retries
        if limit is not None and retries >= limit:
            return await self._fail(delivery, task, error)
        self.counts["retried"] += 1
        _log.warning("task_retried", queue=self._queue.name, task=task.id, retries=retries, error=error)
        delay_ms = self._config.retry_backoff_ms << min(retries, 16)
        return await self._nack(delivery, min(delay_ms, RETRY_DELAY_MAX_MS))

    async def _fail(self, delivery: Delivery, task: Task, error: str) -> None:
        self.counts["failed"] += 1
        _log.warning("task_failed", queue=self._queue.name, task=task.id, error=error)
        await self._move(self._processor.failed_task_queue_name, delivery, error)
        await self._settle(delivery, Outcome(task.id, FAILURE, error))

    async def _unprocessable(self, delivery: Delivery, error: str) -> None:
        self.counts["unprocessable"] += 1
        _log.warning("task_unprocessable", queue=self._queue.name, error=error)
        await self._move(self._processor.unprocessable_task_queue_name, delivery, error)
        if delivery.task is None:
            return await self._ack(delivery)
        return await self._settle(delivery, Outcome(delivery.task.id, FAILURE, error))

    async def _move(self, topic: str | None, delivery: Delivery, error: str) -> None:
        if topic is None:
            return
        body, keys = delivery.message.body, delivery.message.properties.get(MessageConst.KEYS)
        text = error[:ERROR_CHARACTERS].translate({1: " ", 2: " "})
        properties = {"queue": self._queue.name, "error": text}
        await _repeated(lambda: self._queue.producer.send(topic, body, keys=keys, properties=properties))

    async def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Store a result and acknowledge the task."""
        was_visible = (time.monotonic() - delivery.renewed_s) * 1000 >= self._config.invisible_ms
        if not was_visible or await _repeated(lambda: self._queue.final(outcome.id)) is None:
            outcome.created_ms = delivery.message.born_timestamp
            await _repeated(lambda: self._queue.publish(outcome))
        await self._ack(delivery)

    async def _ack(self, delivery: Delivery) -> None:
        await self._end_renewals(delivery)
        await self._consumer.ack(delivery.message)

    async def _nack(self, delivery: Delivery, delay_ms: int) -> None:
        await self._end_renewals(delivery)
        await self._consumer.nack(delivery.message, delay_ms)

    async def _end_renewals(self, delivery: Delivery) -> None:
        """Stop renewals: one that runs beside an ack would change its receipt."""
        delivery.is_settling = True
        if delivery.renewal is not None:
            await delivery.renewal


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

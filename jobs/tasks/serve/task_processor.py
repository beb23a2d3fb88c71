"""RayMQTaskProcessor: the adapter between Ray Serve's task consumers and a queue of RayMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from cluster.client.transport.loop_thread import LoopThread
from jobs.job_errors import OptionInvalid
from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.task_bodies import Outcome
from jobs.tasks.serve.task_queue import TaskQueue, read_backlog
from jobs.tasks.serve.task_worker import TaskWorker
from store.message.group_config import SubscriptionGroupConfig

T = TypeVar("T")
Method = Callable[..., Coroutine[Any, Any, T]]

DEFAULT_CONCURRENCY = 5
BROKER_RETRIES = 16
"""How often a broker delivers a message again by default, before it becomes a dead letter."""
UNLIMITED_RETRIES = (1 << 31) - 1


def _both(method: Method[T]) -> tuple[Callable[..., T], Method[T]]:
    """Return a blocking and an async version of a method whose coroutine runs on the client's event loop."""

    def blocking(self: RayMQTaskProcessor, *args: Any, **kwargs: Any) -> T:
        return self.thread.run(method(self, *args, **kwargs))

    async def awaited(self: RayMQTaskProcessor, *args: Any, **kwargs: Any) -> T:
        work = asyncio.run_coroutine_threadsafe(method(self, *args, **kwargs), self.thread.loop)
        return await asyncio.wrap_future(work)

    blocking.__doc__ = awaited.__doc__ = method.__doc__
    return blocking, awaited


class RayMQTaskProcessor(TaskProcessorAdapter):
    """A task queue in RayMQ.

        @serve.deployment
        @task_consumer(task_processor_config=TaskProcessorConfig(
            queue_name="thumbnails",
            adapter="jobs.tasks.RayMQTaskProcessor",
            adapter_config=RayMQAdapterConfig(),
        ))
        class Thumbnails: ...

    `instantiate_adapter_from_config(config)` returns one to enqueue with. Handlers are functions, which run
    in threads, or coroutine functions, which run on an event loop of their own.

    Methods raise OptionInvalid or BodyInvalid for invalid arguments, and `cluster.client.ClientError`.
    """

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__()
        self.thread = LoopThread.shared()
        self._config = config
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._concurrency = DEFAULT_CONCURRENCY
        self._opened: TaskQueue | None = None
        self._worker: TaskWorker | None = None
        given = config.adapter_config
        if not isinstance(given, RayMQAdapterConfig | dict):  # a dict if it is from a configuration file
            raise OptionInvalid(f"adapter_config is a {type(given).__name__}: give a RayMQAdapterConfig")
        self._adapter_config = RayMQAdapterConfig(**given) if isinstance(given, dict) else given

    def __del__(self) -> None:
        """Close the connections; the abstract class has no method for that."""
        if self._opened is not None and not self.thread.is_forked:
            asyncio.run_coroutine_threadsafe(self._opened.close(), self.thread.loop)

    def initialize(self, consumer_concurrency: int = DEFAULT_CONCURRENCY) -> None:
        """Connect, and create the topics that are missing."""
        self._concurrency = consumer_concurrency
        self._opened = queue = TaskQueue(self._config.queue_name, self._adapter_config)
        dead_queues = (self._config.failed_task_queue_name, self._config.unprocessable_task_queue_name)
        self.thread.run(queue.open(*dead_queues))

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Register the handler of a task. Its default name is that of the function."""
        self._handlers[name or func.__name__] = func

    def start_consumer(self, **kwargs: Any) -> None:
        """Start to take tasks, unless that has happened."""
        if self._worker is None:
            self.thread.run(self._start())

    def stop_consumer(self, timeout: int | float = 10) -> None:
        """Take no more tasks and wait for the running ones. Return those that still run after the timeout."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self.thread.run(worker.stop(timeout))

    async def _start(self) -> None:
        queue, retries = self._queue, self._config.max_retries
        if retries is None or retries >= BROKER_RETRIES // 2:  # some remain for replicas that die
            limit = UNLIMITED_RETRIES if retries is None else retries + BROKER_RETRIES
            await queue.admin.put_group(SubscriptionGroupConfig(queue.group, retry_max_times=limit))
        self._worker = TaskWorker(
            queue, self._config, self._adapter_config, self._handlers, self._concurrency
        )

    async def _enqueue(
        self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> TaskResult:
        """Enqueue a task. The options are those of `TaskQueue.enqueue`."""
        return _result(await self._queue.enqueue(task_name, args, kwargs, **options))

    async def _status(self, task_id: str) -> TaskResult:
        """Return the status PENDING, SUCCESS, FAILURE with the error as result, REVOKED, or UNKNOWN."""
        return _result(await self._queue.status(task_id))

    async def _cancel(self, task_id: str) -> None:
        """Revoke a task without a result: it is not started, and the result of a running handler is ignored.

        A running coroutine is cancelled when its claim is renewed.
        """
        await self._queue.cancel(task_id)

    async def _metrics(self) -> dict[str, Any]:
        """Return the load of the queue (None: unknown), and what this replica has done since its start."""
        figures: dict[str, Any] = (await read_backlog(self._queue.admin, self._queue.name))._asdict()
        if (worker := self._worker) is not None:
            figures["replica"] = {**worker.counts, "running": len(worker.deliveries)}
        return figures

    async def _health(self) -> list[dict[str, Any]]:
        """Return `{name: {"ok": …}}` of this replica, if it takes tasks, and of all online ones."""
        failure = None if self._worker is None else self._worker.failure
        mine = [] if self._worker is None else [{"this replica": {"ok": failure is None, "error": failure}}]
        online = await self._queue.admin.group_connection(self._queue.group)
        return [*mine, *({each.client_id: {"ok": True}} for each in (online.connections if online else ()))]

    enqueue_task_sync, enqueue_task_async = _both(_enqueue)
    get_task_status_sync, get_task_status_async = _both(_status)
    cancel_task_sync, cancel_task_async = _both(_cancel)
    get_metrics_sync, get_metrics_async = _both(_metrics)
    health_check_sync, health_check_async = _both(_health)

    @property
    def _queue(self) -> TaskQueue:
        if self._opened is None:
            raise RuntimeError("the task processor is not initialized: call initialize(), as Ray Serve does")
        return self._opened


def _result(outcome: Outcome) -> TaskResult:
    created_s = None if outcome.created_ms is None else outcome.created_ms / 1000
    return TaskResult(id=outcome.id, status=outcome.status, created_at=created_s, result=outcome.result)

"""RayMQTaskProcessor: the adapter between Ray Serve's task consumers and a queue of RayMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig

from cluster.client.transport.loop_thread import LoopThread
from jobs.job_errors import OptionInvalid
from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.task_queue import TaskQueue, read_backlog
from jobs.tasks.serve.task_worker import TaskWorker
from store.message.group_config import SubscriptionGroupConfig

T = TypeVar("T")
Method = Callable[..., Coroutine[Any, Any, T]]

DEFAULT_CONCURRENCY = 5
BROKER_RETRIES = 16
"""How often a broker delivers a message again by default, before it becomes a dead letter."""
UNLIMITED_RETRIES = (1 << 31) - 1


def _both(method: Method[T], *, of_queue: bool = True) -> tuple[Callable[..., T], Method[T]]:
    """Return a blocking and an async version of a coroutine function, run on the client's event loop."""

    def begun(self: RayMQTaskProcessor, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        return method(self.queue if of_queue else self, *args, **kwargs)

    def blocking(self: RayMQTaskProcessor, *args: Any, **kwargs: Any) -> T:
        return self.thread.run(begun(self, *args, **kwargs))

    async def awaited(self: RayMQTaskProcessor, *args: Any, **kwargs: Any) -> T:
        work = asyncio.run_coroutine_threadsafe(begun(self, *args, **kwargs), self.thread.loop)
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

    @property
    def queue(self) -> TaskQueue:
        """The queue. Its coroutines run on the event loop of the client."""
        if self._opened is None:
            raise RuntimeError("the task processor is not initialized: call initialize(), as Ray Serve does")
        return self._opened

    def initialize(self, consumer_concurrency: int = DEFAULT_CONCURRENCY) -> None:
        """Connect, and create the topics that are missing."""
        self._concurrency = consumer_concurrency
        self._opened = TaskQueue(self._config.queue_name, self._adapter_config)
        dead_queues = (self._config.failed_task_queue_name, self._config.unprocessable_task_queue_name)
        self.thread.run(self._opened.open(*dead_queues))

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
        retries = self._config.max_retries
        if retries is None or retries >= BROKER_RETRIES // 2:  # some remain for replicas that die
            limit = UNLIMITED_RETRIES if retries is None else retries + BROKER_RETRIES
            await self.queue.admin.put_group(SubscriptionGroupConfig(self.queue.group, retry_max_times=limit))
        self._worker = TaskWorker(self.queue, self._config, self._handlers, self._concurrency)

    async def _metrics(self) -> dict[str, Any]:
        """Return the load of the queue (None: unknown), and what this replica has done since its start."""
        figures: dict[str, Any] = (await read_backlog(self.queue.admin, self.queue.name))._asdict()
        if (worker := self._worker) is not None:
            figures["replica"] = {**worker.counts, "running": len(worker.running)}
        return figures

    async def _health(self) -> list[dict[str, Any]]:
        """Return `{name: {"ok": …}}` of this replica, if it takes tasks, and of all online ones."""
        failure = None if self._worker is None else self._worker.failure
        mine = [] if self._worker is None else [{"this replica": {"ok": failure is None, "error": failure}}]
        online = await self.queue.admin.group_connection(self.queue.group)
        return [*mine, *({each.client_id: {"ok": True}} for each in (online.connections if online else ()))]

    enqueue_task_sync, enqueue_task_async = _both(TaskQueue.enqueue)
    get_task_status_sync, get_task_status_async = _both(TaskQueue.status)
    cancel_task_sync, cancel_task_async = _both(TaskQueue.cancel)
    get_metrics_sync, get_metrics_async = _both(_metrics, of_queue=False)
    health_check_sync, health_check_async = _both(_health, of_queue=False)

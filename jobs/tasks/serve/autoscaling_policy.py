"""RayMQQueueAutoscalingPolicy: replicas of a task consumer from the load of its queue."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import Future
from typing import Any

from ray.serve.config import AutoscalingContext

from cluster.client.aio import Admin
from cluster.client.config import ClientConfig
from cluster.client.transport.loop_thread import LoopThread
from jobs.job_errors import OptionInvalid
from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.task_queue import Backlog, read_backlog
from store.common.logs import get_logger

_log = get_logger(__name__)

POLL_TIMEOUT_S = 10.0
NOT_KNOWN = Backlog(None, None, None)


class RayMQQueueAutoscalingPolicy:
    """Scales a task consumer with the tasks of its queue and their age.

        AutoscalingConfig(
            min_replicas=0, max_replicas=10, upscale_delay_s=0, downscale_delay_s=30,
            policy=AutoscalingPolicy(
                policy_function=RayMQQueueAutoscalingPolicy,
                policy_kwargs={"queue_name": "thumbnails", "tasks_per_replica": 20},
            ),
        )

    Args:
        queue_name: Name of the queue.
        adapter_config: Fields of RayMQAdapterConfig that say where the queue is.
        tasks_per_replica: Waiting and running tasks for each replica. None: `target_ongoing_requests`.
        age_s: How old a waiting task should be at most. If one is older, replicas are added in proportion.
        poll_interval_s: How often the load is read.
    """

    def __init__(
        self,
        queue_name: str,
        adapter_config: dict[str, Any] | None = None,
        tasks_per_replica: float | None = None,
        age_s: float | None = None,
        poll_interval_s: float = 1.0,
    ) -> None:
        for name, value in (("tasks_per_replica", tasks_per_replica), ("age_s", age_s)):
            if value is not None and not value > 0:
                raise OptionInvalid(f"{name} is {value!r}: give a number greater than 0, or None")
        self._queue_name = queue_name
        self._config = RayMQAdapterConfig(**(adapter_config or {}))
        self._tasks_per_replica = tasks_per_replica
        self._age_s = age_s
        self._poll_interval_s = poll_interval_s
        self._poll: Future[Backlog] | None = None
        self._polled_s = -math.inf
        self._load = NOT_KNOWN

    def __call__(self, ctx: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Return the wanted number of replicas for the load read last, and this load."""
        if self._poll is not None and self._poll.done():
            if (error := self._poll.exception()) is not None:
                _log.warning("queue_load_unknown", queue=self._queue_name, error=str(error))
            self._load = self._poll.result() if error is None else NOT_KNOWN
            self._poll = None
        if self._poll is None and time.monotonic() - self._polled_s >= self._poll_interval_s:
            self._polled_s = time.monotonic()
            read = asyncio.wait_for(self._read(), POLL_TIMEOUT_S)
            self._poll = asyncio.run_coroutine_threadsafe(read, LoopThread.shared().loop)
        per_replica = self._tasks_per_replica or ctx.config.get_target_ongoing_requests()
        wanted = wanted_replicas(self._load, ctx.current_num_replicas, per_replica, self._age_s)
        return (ctx.target_num_replicas if wanted is None else wanted), self._load._asdict()

    async def _read(self) -> Backlog:
        settings = await asyncio.to_thread(self._config.client_settings)
        # Not kept open: Serve drops a policy without a call that could close it.
        async with Admin(config=ClientConfig(**settings)) as admin:
            return await read_backlog(admin, self._queue_name)


def wanted_replicas(
    load: Backlog, current: int, per_replica: float, age_limit_s: float | None
) -> float | None:
    """Return the number of replicas for a load, or None if the load is unknown."""
    if load.waiting is None or load.running is None:
        return None
    by_count = math.ceil((load.waiting + load.running) / per_replica)
    oldest_s = load.oldest_waiting_s if load.waiting else None
    if age_limit_s is None or oldest_s is None or oldest_s <= age_limit_s:
        return by_count
    return max(by_count, math.ceil(max(current, 1) * oldest_s / age_limit_s))

"""Task processors as Ray Serve uses them, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ray.serve.schema import TaskProcessorConfig, TaskResult
from ray.serve.task_consumer import instantiate_adapter_from_config

from jobs.tasks import RayMQAdapterConfig, RayMQTaskProcessor
from tests.eventually import eventually

_numbers = itertools.count()


class Processors:
    """Creates the processors of one queue, and stops them at the end of the test."""

    def __init__(self, nameservers: str) -> None:
        self.queue = f"tasks-{next(_numbers)}"
        self._nameservers = nameservers
        self._made: list[RayMQTaskProcessor] = []

    def make(
        self, *handlers: Callable[..., Any], max_retries: int | None = 3, concurrency: int = 4, **adapter: Any
    ) -> RayMQTaskProcessor:
        """Return a processor; with handlers, it takes tasks."""
        fields = {"nameservers": self._nameservers, "retry_backoff_ms": 1, "invisible_ms": 5_000, "queues": 2}
        config = TaskProcessorConfig(
            queue_name=self.queue,
            adapter="jobs.tasks.RayMQTaskProcessor",
            adapter_config=RayMQAdapterConfig(**{**fields, **adapter}),
            max_retries=max_retries,
            failed_task_queue_name=f"{self.queue}-failed",
            unprocessable_task_queue_name=f"{self.queue}-unprocessable",
        )
        processor = instantiate_adapter_from_config(config)
        assert isinstance(processor, RayMQTaskProcessor)
        for handler in handlers:
            processor.register_task_handle(handler)
        if handlers:
            processor.initialize(concurrency)
            processor.start_consumer()
        self._made.append(processor)
        return processor

    def stop(self) -> None:
        for processor in self._made:
            processor.stop_consumer(timeout=0)


def result_of(processor: RayMQTaskProcessor, task_id: str) -> TaskResult:
    """Wait for the result of a task and return it."""

    def final() -> TaskResult | None:
        found = processor.get_task_status_sync(task_id)
        return None if found.status in {"PENDING", "UNKNOWN"} else found

    found = eventually(final, f"result of {task_id}")
    assert found is not None
    return found

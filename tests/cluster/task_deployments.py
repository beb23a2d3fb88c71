"""Task consumers on Ray Serve, for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

from jobs.tasks import RayMQAdapterConfig, RayMQQueueAutoscalingPolicy, RayMQTaskProcessor

APPLICATION = "tasks"


def config_of(queue: str, **adapter: Any) -> TaskProcessorConfig:
    return TaskProcessorConfig(
        queue_name=queue,
        adapter="jobs.tasks.RayMQTaskProcessor",
        adapter_config=RayMQAdapterConfig(**{"invisible_ms": 2_000, "retry_backoff_ms": 100, **adapter}),
        max_retries=5,
        failed_task_queue_name=f"{queue}-failed",
    )


def sender_of(config: TaskProcessorConfig) -> RayMQTaskProcessor:
    processor = instantiate_adapter_from_config(config)
    assert isinstance(processor, RayMQTaskProcessor)
    return processor


def deployment_of(config: TaskProcessorConfig, **options: Any) -> serve.Deployment:
    """Return a deployment whose tasks return the id of their process."""

    @serve.deployment(ray_actor_options={"num_cpus": 0.01}, graceful_shutdown_timeout_s=10, **options)
    @task_consumer(task_processor_config=config)
    class Consumer:
        @task_handler(name="square")
        def square(self, number: int) -> list[int]:
            return [number * number, os.getpid()]

        @task_handler(name="hang_once")
        def hang_once(self, mark: str) -> int:
            """Hang in the first process that runs it."""
            if not Path(mark).exists():
                Path(mark).touch()
                threading.Event().wait()
            return os.getpid()

        @task_handler(name="hold")
        def hold(self, path: str) -> None:
            """Run until a file exists."""
            while not Path(path).exists():
                threading.Event().wait(0.05)

    return Consumer


def autoscaled(queue: str) -> dict[str, Any]:
    """Return the options of a deployment that is scaled with its queue, to zero and back."""
    policy = AutoscalingPolicy(
        policy_function=RayMQQueueAutoscalingPolicy,
        policy_kwargs={"queue_name": queue, "tasks_per_replica": 5, "poll_interval_s": 0.5},
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=0,
            initial_replicas=0,
            max_replicas=2,
            upscale_delay_s=0,
            downscale_delay_s=0,
            downscale_to_zero_delay_s=0,
            policy=policy,
        )
    }


@contextmanager
def deployed(deployment: serve.Deployment) -> Iterator[None]:
    """Run a deployment on the Ray of this process, without HTTP. Serve itself continues."""
    serve.start(proxy_location="Disabled")
    run(deployment)
    try:
        yield
    finally:
        serve.delete(APPLICATION)


def run(deployment: serve.Deployment) -> None:
    serve.run(deployment.bind(), name=APPLICATION, route_prefix=None)


def replicas() -> int:
    """Return the number of running replicas."""
    (status,) = serve.status().applications[APPLICATION].deployments.values()
    return status.replica_states.get("RUNNING", 0)
